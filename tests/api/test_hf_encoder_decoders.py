"""The drop-in for encoder-decoders against transformers' own ``generate``, over its arguments."""

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

import paceline.hf
from tests.models.encoder_decoders import VOCAB, pair

KINDS = ["t5", "mt5", "bart", "mbart", "marian", "pegasus"]
SIZES = (7, 2, 5)
NEW = 12


def model_of(kind, seed=1):
    """transformers' generate takes T5s with as many layers on both sides."""
    return pair(kind, seed, **({"num_layers": 3} if "t5" in kind else {}))[0]


def sources(kind, seed=1):
    """Three texts, padded on the right, and their mask."""
    ids = torch.randint(4, VOCAB, (len(SIZES), max(SIZES)), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(max(SIZES)) < torch.tensor(SIZES)[:, None]
    return ids * mask, mask.long()


def both(kind, drafting=None, **options):
    """What transformers and the drop-in give of the same call."""
    model = model_of(kind)
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    if "encoder_outputs" not in options:
        ids, mask = sources(kind)
        options = {"input_ids": ids, "attention_mask": mask, **options}
    return model.generate(**options), paceline.hf.generate(model, **options, **(drafting or {}))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_new_tokens": None, "max_length": 9},
        {"eos_token_id": list(range(0, VOCAB, 4)), "forced_eos_token_id": 2},
        {"forced_bos_token_id": 9, "forced_eos_token_id": 5, "eos_token_id": None},
        {"decoder_input_ids": torch.tensor([[3, 8, 9], [3, 1, 2], [3, 5, 5]])},
        {"decoder_input_ids": torch.tensor([[8, 9], [1, 2], [5, 5]]), "forced_bos_token_id": 9},
        {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 5, "eos_token_id": [7, 9, 11, 30]},
        {"forced_bos_token_id": 9, "begin_suppress_tokens": [4, 8, 20], "bad_words_ids": [[5], [6, 7]]},
        {"decoder_start_token_id": 8},
    ],
    ids=str,
)
def test_tokens_are_those_of_transformers(kind, options):
    wanted, found = both(kind, **options)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "drafting", [{"assistant_model": "self"}, {"assistant_model": "other"}, {"prompt_lookup_num_tokens": 3}], ids=str
)
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_drafted_tokens_are_those_of_plain_decoding(kind, drafting):
    models = {"self": model_of(kind), "other": model_of(kind, 2)}
    assistant = models.get(drafting.get("assistant_model"))
    wanted, found = both(kind, drafting if assistant is None else {"assistant_model": assistant})
    assert torch.equal(found, wanted)


def test_a_draft_that_is_the_target_is_accepted():
    model, (ids, mask) = model_of("bart"), sources("bart")
    found = paceline.hf.generate(
        model,
        ids,
        attention_mask=mask,
        assistant_model=model,
        num_assistant_tokens=3,
        max_new_tokens=NEW,
        eos_token_id=None,
        forced_eos_token_id=None,
        return_dict_in_generate=True,
    )
    assert [statistics.steps for statistics in found.statistics] == [NEW // 4] * len(SIZES)


def test_without_a_mask_the_encoder_reads_every_token():
    model, (ids, mask) = model_of("t5"), sources("t5")
    wanted = model.generate(ids, attention_mask=torch.ones_like(mask), max_new_tokens=NEW, do_sample=False)
    assert torch.equal(paceline.hf.generate(model, ids, max_new_tokens=NEW), wanted)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_states_in_place_of_tokens(kind):
    model, (ids, mask) = model_of(kind), sources(kind)
    with torch.no_grad():
        states = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
    wanted, found = both(kind, encoder_outputs=BaseModelOutput(last_hidden_state=states), attention_mask=mask)
    assert torch.equal(found, wanted)
    again = paceline.hf.generate(model, encoder_outputs=(states,), attention_mask=mask, max_new_tokens=NEW)
    assert torch.equal(again, wanted)


def test_samples_of_each_source():
    model, (ids, mask) = model_of("bart"), sources("bart")
    torch.manual_seed(0)
    found = paceline.hf.generate(
        model, ids, attention_mask=mask, do_sample=True, num_return_sequences=4, max_new_tokens=NEW, temperature=2.0
    )
    assert found.shape[0] == 4 * len(SIZES) and len({tuple(row.tolist()) for row in found[:4]}) > 1


def test_streamer_gets_start_tokens_and_end():
    class Streamer:
        def __init__(self):
            self.seen, self.ended = [], False

        def put(self, value):
            self.seen += value.flatten().tolist()

        def end(self):
            self.ended = True

    model, (ids, _), streamer = model_of("bart"), sources("bart"), Streamer()
    options = dict(max_new_tokens=NEW, forced_eos_token_id=5, eos_token_id=None)
    found = paceline.hf.generate(model, ids[:1], streamer=streamer, **options)
    assert streamer.ended and streamer.seen == found[0].tolist() and streamer.seen[-1] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_mask": torch.tensor([[0, 1, 1]])}, "padding_side = 'right'"),
        ({"attention_mask": torch.tensor([[0, 0, 0]])}, "padding only"),
        ({"attention_mask": torch.tensor([[1, 1]])}, "one of the same shape"),
        ({"input_ids": torch.tensor([[5, VOCAB]])}, "leave the model's vocabulary"),
        ({"input_ids": None}, "no input_ids for the encoder"),
        ({"decoder_input_ids": torch.tensor([[3], [3]])}, "2 rows for 1 sources"),
        ({"decoder_input_ids": torch.tensor([[3, VOCAB]])}, "decoder_input_ids 3..61 leave"),
        ({"decoder_input_ids": torch.tensor([[3, 4]]), "decoder_attention_mask": torch.tensor([[0, 1]])}, "zeros"),
        ({"encoder_outputs": (torch.zeros(1, 3, 32),)}, "the same source"),
        ({"encoder_outputs": 3, "input_ids": None}, r"give states \[rows, states, size\]"),
        ({"guidance_scale": 2.0}, "guidance_scale with an encoder-decoder"),
        ({"negative_prompt_ids": [[1]]}, "negative_prompt_ids with an encoder-decoder"),
        ({"num_beams": 4}, "num_beams=4"),
        ({"forced_eos_token_id": 99}, "forced_eos_token_id=99: the model has 61 tokens"),
        ({"forced_eos_token_id": 5, "max_new_tokens": 1}, "give at least one more"),
        (
            {"forced_bos_token_id": 5, "return_dict_in_generate": True, "output_scores": True},
            "forced_bos_token_id with output_scores",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        paceline.hf.generate(
            model_of("bart"), **{"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 5, **options}
        )


def test_models_that_read_sound_are_refused():
    with pytest.raises(ValueError, match="reads input_features"):
        paceline.hf.generate(model_of("whisper"), torch.tensor([[5]]))


def test_a_patched_model_generates_here():
    model, (ids, mask) = model_of("t5"), sources("t5")
    wanted = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    paceline.hf.patch(model, prompt_lookup_num_tokens=2)
    try:
        assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=NEW), wanted)
    finally:
        paceline.hf.unpatch(model)
