"""Encoder-decoders against transformers: logits, tokens of ragged batches, drafted and plain, and what is read once."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.api.loading import load
from paceline.api.prompts import EncoderDecoderPrompt, read_prompt
from paceline.core.context import Context
from paceline.core.guidance import Guidance
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from paceline.models import loading
from paceline.models.base import LogitsFor
from paceline.models.directory import ModelError
from paceline.models.from_transformers import from_transformers, is_current
from paceline.models.loading import load as load_native
from paceline.models.native.encoder_decoder import ENCODED_AT_ONCE
from paceline.models.prefill import feed
from tests import tiny
from tests.drafters.test_early_exit import head_of
from tests.harness import decoder_for, expected, finish, request, tiny_drafter
from tests.models.encoder_decoders import KINDS, START, STATES, VOCAB, Naive, context, pair, transformers_model

PROMPT = [START, 5, 40]
SIZES = (7, 1, STATES, 4)  # tokens of sources


def asked(kind, index, **options):
    return replace(request(PROMPT, **options), context=context(kind, index, SIZES[index % len(SIZES)]))


def naive(kind, one):
    return expected(one, Naive(pair(kind)[0], one.context))


def drafters(kind):
    target = pair(kind)[1]
    return {
        "none": NoDrafter,
        "the target": lambda: ModelDrafter(lm=target),
        "another with an encoder": lambda: ModelDrafter(lm=pair(kind, 2)[1]),
        "a tree": lambda: ModelDrafter(lm=target, shape=Topology.branching((2, 2, 1))),
        "a decoder alone": lambda: ModelDrafter(lm=tiny.draft()),
        "an exit": lambda: EarlyExitDrafter(head=head_of(target, exit_layer=2, num_blocks=0)),
        "an exit and a block": lambda: EarlyExitDrafter(
            head=EarlyExitHead.make(EarlyExitConfig(exit_layer=1), target, generator=torch.Generator().manual_seed(1))
        ),
        **{name: lambda name=name: tiny_drafter(name, target) for name in ("prophet", "suffix", "ngram", "copy")},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_trees_and_prompts_match_transformers(kind):
    model, lm = pair(kind)
    contexts = [context(kind, seed, size) for seed, size in enumerate((7, 4))]
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))
    requests = [replace(request(row.tolist()), context=given) for row, given in zip(tokens, contexts, strict=True)]
    decoder = decoder_for(NoDrafter(), "coupled", target=lm, rows=3)
    reading = decoder.begin(requests, [2, 0])
    cache = decoder.cache.storage.view(reading.admission.rows)
    with torch.no_grad():
        pieces = [
            feed(lm, cache, tokens, torch.tensor([size] * 2), size, logits_for=LogitsFor.ALL).logits for size in (4, 5)
        ]
        wanted = torch.cat([Naive(model, given)(row[None]).logits for given, row in zip(contexts, tokens, strict=True)])
    # T5's norms round to float32 in transformers, whatever the model's precision.
    torch.testing.assert_close(torch.cat(pieces, dim=1), wanted, rtol=0, atol=1e-4 if "t5" in kind else 1e-12)


@pytest.mark.one_in(64)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", drafters("t5"))
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_sources_of_different_lengths_match_plain_forwards(kind, drafter, temperature):
    requests = [asked(kind, index, temperature=temperature, seed=index) for index in range(4)]
    rows = [2, 0, 3, 1]
    decoder = decoder_for(drafters(kind)[drafter](), "coupled", target=pair(kind)[1], rows=4)
    decoder.admit(requests, rows)
    found = finish(decoder, rows=rows, prompts=[one.tokens for one in requests])
    assert found.texts == [naive(kind, one) for one in requests]
    assert len({tuple(text) for text in found.texts}) > 1, "the sources make no difference"
    if drafter == "the target":
        assert found.steps == 24 // 4


@pytest.mark.parametrize("kind", ["t5", "bart", "whisper"])
def test_one_row_matches_plain_forwards(kind):
    one = asked(kind, 1)
    decoder = decoder_for(ModelDrafter(lm=pair(kind)[1]), "coupled", target=pair(kind)[1], rows=1)
    decoder.admit([one], [0])
    found = finish(decoder, rows=[0], prompts=[PROMPT])
    assert found.texts == [naive(kind, one)] and found.steps == 24 // 4


def test_greedy_text_is_that_of_transformers_own_generate():
    model, lm = pair("bart")
    given = context("bart", 5, 9)
    ids = model.generate(
        given.inputs["input_ids"][None],
        decoder_input_ids=torch.tensor([PROMPT]),
        max_new_tokens=16,
        do_sample=False,
        num_beams=1,
        forced_eos_token_id=None,
        eos_token_id=None,
    )
    decoder = decoder_for(ModelDrafter(lm=pair("bart", 2)[1]), "coupled", target=lm, rows=1)
    one = replace(request(PROMPT, max_tokens=16), context=given)
    decoder.admit([one], [0])
    assert finish(decoder, rows=[0], prompts=[PROMPT]).texts == [ids[0, len(PROMPT) :].tolist()]


def test_output_that_is_empty_but_for_its_end():
    """End of text is the first token, in one row of a batch."""
    one, other = asked("t5", 0), asked("t5", 2)
    first = naive("t5", one)[0]
    ended = replace(one, stop_tokens=(first,))
    decoder = decoder_for(ModelDrafter(lm=pair("t5")[1]), "coupled", target=pair("t5")[1], rows=2)
    decoder.admit([ended, other], [0, 1])
    assert finish(decoder, rows=[0, 1], prompts=[PROMPT, PROMPT]).texts == [[first], naive("t5", other)]


def test_guidance_reads_both_sources():
    own, negative = context("t5", 1, 6), context("t5", 2, 9)
    one = replace(request(PROMPT, max_tokens=8), context=own)
    guided = replace(one, guidance=Guidance(scale=2.0, prompt=(START,), context=negative))
    decoder = decoder_for(ModelDrafter(lm=pair("t5")[1]), "coupled", target=pair("t5")[1], rows=2, guidance=True)
    decoder.admit([guided, one], [0, 1])
    found = finish(decoder, rows=[0, 1], prompts=[PROMPT, PROMPT]).texts
    assert found[1] == naive("t5", one) and found[0] == guided_tokens(own, negative, 8)


def guided_tokens(own, negative, count):
    """Greedy tokens of guided logits, by plain forwards."""
    first, second = (Naive(pair("t5")[0], given) for given in (own, negative))
    new = []
    for _ in range(count):
        with torch.no_grad():
            one = first(torch.tensor([[*PROMPT, *new]])).logits[0, -1].log_softmax(-1)
            other = second(torch.tensor([[START, *new]])).logits[0, -1].log_softmax(-1)
        new.append(int((other + 2.0 * (one - other)).argmax()))
    return new


def counted(lm, monkeypatch):
    """How many inputs the encoder reads, as a list that grows."""
    read = []
    encode = lm.encode_inputs
    monkeypatch.setattr(lm, "encode_inputs", lambda inputs, length: read.append(len(inputs)) or encode(inputs, length))
    return read


def test_equal_sources_are_read_once_also_where_rows_are_few(monkeypatch):
    lm = pair("t5")[1]
    given = context("t5", 77, 5)
    equal = Context({name: tensor.clone() for name, tensor in given.inputs.items()})
    read = counted(lm, monkeypatch)
    requests = [
        replace(request(PROMPT, temperature=1.0, seed=seed, max_tokens=4 + seed), context=one)
        for seed, one in enumerate((given, given, equal, context("t5", 78, 9), given))
    ]
    scheduler = Scheduler(Runner(decoder_for(NoDrafter(), "coupled", target=lm, rows=2)))
    tickets = {scheduler.submit(one): [] for one in requests}
    while not scheduler.idle:
        for output in scheduler.advance():
            assert output.error is None
            tickets[output.ticket].extend(output.token_ids)
    assert list(tickets.values()) == [naive("t5", one) for one in requests]
    assert sum(read) == 2


def test_a_draft_that_shares_the_encoder_does_not_run_it(monkeypatch):
    target, draft = pair("t5")[1], pair("t5", 2)[1]
    other = loading.build(
        replace(draft.config, encoder=None),
        {
            name: tensor
            for name, tensor in loading.split_parts(draft.config, draft.state_dict()).items()
            if not name.startswith("encoder.")
        },
    )
    other.share_encoder(target)
    read = counted(target, monkeypatch)
    given = context("t5", 91, 6)
    one = replace(request(PROMPT), context=given)
    decoder = decoder_for(ModelDrafter(lm=other), "coupled", target=target, rows=1)
    decoder.admit([one], [0])
    assert finish(decoder, rows=[0], prompts=[PROMPT]).texts == [naive("t5", one)] and read == [1]


def test_states_may_be_given_in_place_of_inputs(monkeypatch):
    model, lm = pair("whisper")
    given = context("whisper", 4)
    with torch.no_grad():
        states = model.get_encoder()(given.inputs["input_features"][None]).last_hidden_state[0]
    read = counted(lm, monkeypatch)
    one = replace(request(PROMPT), context=Context({"encoder_outputs": states}))
    decoder = decoder_for(NoDrafter(), "coupled", target=lm, rows=1)
    decoder.check(one)
    decoder.admit([one], [0])
    assert finish(decoder, rows=[0], prompts=[PROMPT]).texts == [naive("whisper", replace(one, context=given))]
    assert read == []


def test_inputs_are_encoded_in_parts_within_the_memory(monkeypatch):
    lm = pair("t5")[1]
    monkeypatch.setattr("paceline.models.native.encoder_decoder.ENCODED_AT_ONCE", 8 * lm._position_bytes)
    read, contexts = counted(lm, monkeypatch), [context("t5", 200 + size, size) for size in (9, 2, 3, 1, 4)]
    together = lm.encode(contexts)
    seconds = [lm.encoding_seconds(one) for one in contexts]
    assert all(seconds) and len(set(seconds)) == len(read)  # of those encoded together an equal share
    assert lm.encoding_seconds(context("t5", 300, 2)) == 0
    assert read == [2, 2, 1] or (sum(read) == 5 and len(read) > 1)
    assert ENCODED_AT_ONCE > 8 * lm._position_bytes
    for given, states in zip(contexts, together, strict=True):
        alone = lm.encode_inputs(given.inputs["input_ids"][None], torch.tensor([len(given.inputs["input_ids"])]))[0]
        torch.testing.assert_close(states, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_files_round_trip_and_load(kind, tmp_path):
    model = transformers_model(kind, dtype=torch.float32)
    model.save_pretrained(tmp_path / "theirs")
    lm = load_native(tmp_path / "theirs")
    loading.save(lm, loading.read_config(tmp_path / "theirs"), tmp_path / "ours", dtype=torch.float32)
    again = type(model).from_pretrained(tmp_path / "ours")
    for name, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        rows = slice(2, None) if "bart" in kind and "embed_positions" in name else slice(None)  # two are never read
        torch.testing.assert_close(again.state_dict()[name][rows], tensor[rows], rtol=0, atol=0, msg=name)
    loaded = load(tmp_path / "theirs")
    assert loaded.start == (START,) and set(loaded.lm.context_inputs) in ({"input_ids"}, {"input_features"})


@pytest.mark.parametrize("kind", ["bart", "marian", "pegasus"])
def test_what_checkpoints_leave_out_is_made(kind, tmp_path):
    """The bias of the logits is zero then, and tables of positions are sinusoids."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = type(transformers_model(kind))(transformers_model(kind).config).eval()
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    left_out = ("final_logits_bias",) if kind == "bart" else ("final_logits_bias", "embed_positions.weight")
    save_file(
        {name: part for name, part in stored.items() if not name.endswith(left_out)},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    for dtype in (None, torch.bfloat16):
        lm = load_native(tmp_path, dtype=dtype)
        assert lm.logits_bias.dtype is lm.dtype is (dtype or torch.float32) and not lm.logits_bias.any()
        if kind != "bart":
            wanted = model.model.decoder.embed_positions.weight.to(lm.dtype)
            torch.testing.assert_close(lm.position.weight, wanted, rtol=0, atol=1e-6)
            torch.testing.assert_close(lm.encoder.position.weight, wanted, rtol=0, atol=1e-6)


def test_vocabularies_of_source_and_output_that_differ_are_refused():
    model = transformers_model("marian", share_encoder_decoder_embeddings=False, decoder_vocab_size=VOCAB)
    with pytest.raises(ModelError, match=r"share_encoder_decoder_embeddings=False is not supported.* only True"):
        from_transformers(model)


@pytest.mark.parametrize("kind", ["bart", "mbart"])
def test_tables_of_encoder_and_decoder_that_differ_are_refused(kind, tmp_path):
    model = transformers_model(kind, dtype=torch.float32, tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "differing")
    with pytest.raises(ModelError, match=r"coder\.embed_tokens\.weight differs from model\.shared\.weight"):
        load_native(tmp_path / "differing")
    with pytest.raises(ModelError, match=r"embeddings of encoder and decoder are tensors of their own.* tie them"):
        from_transformers(model)
    base = model.model
    with torch.no_grad():
        for part in (base.encoder, base.decoder):
            part.embed_tokens.weight.copy_(base.shared.weight)
    model.save_pretrained(tmp_path / "equal")
    inputs, ids = context(kind, 1).inputs["input_ids"][None], torch.tensor([PROMPT])
    with torch.no_grad():
        wanted = model(input_ids=inputs, decoder_input_ids=ids).logits
        lm = load_native(tmp_path / "equal")
        found = lm.causal(ids, source=lm.source_of(lm.encode_inputs(inputs, length := torch.tensor([7])), length))
    torch.testing.assert_close(found.logits, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_stay_shared_with_transformers(kind):
    model, lm = pair(kind)
    assert is_current(lm, model)
    with torch.no_grad():
        next(iter(model.get_decoder().parameters())).data = next(iter(model.get_decoder().parameters())).data.clone()
    assert not is_current(lm, model)
    pair.cache_clear()


def test_inputs_that_do_not_fit_are_refused():
    target = load(transformers_model("t5"))
    with pytest.raises(
        ValueError, match=r"context 'input_ids' is int64 \[21\] with .*, and the target reads token ids"
    ):
        decoder_for(NoDrafter(), "coupled", target=target.lm).check(
            replace(request(PROMPT), context=context("t5", 1, STATES + 1))
        )
    sound = load(transformers_model("whisper"))
    with pytest.raises(ValueError, match=r"prompt: WhisperForConditionalGeneration reads 'input_features'.*not text"):
        read_prompt(sound, [4, 5])
    with pytest.raises(ValueError, match="an encoder-decoder reads no chat messages: give a text"):
        read_prompt(target, [{"role": "user", "content": "x"}])
    alone = load(tiny.llama())
    with pytest.raises(ValueError, match="LlamaForCausalLM has no encoder: give a text"):
        read_prompt(alone, EncoderDecoderPrompt(inputs=[3]))
    found = read_prompt(target, [4, 5])
    assert found.tokens == [START] and found.context.inputs["input_ids"].tolist() == [4, 5]


def test_the_time_of_an_encoding_is_shared_by_those_encoded_together():
    lm = pair("t5")[1]
    together = [context("t5", seed, size=7) for seed in (91, 92)]
    assert lm.encoding_seconds(together[0]) == 0.0
    lm.encode(together)
    seconds = [lm.encoding_seconds(one) for one in together]
    assert seconds[0] == seconds[1] > 0.0
    lm.encode(together)
    assert [lm.encoding_seconds(one) for one in together] == seconds, "nothing was encoded again"


def test_messages_are_refused_by_the_prompts_name():
    with pytest.raises(ValueError, match="third: an encoder-decoder reads no chat messages"):
        read_prompt(load(pair("t5")[0]), [{"role": "user", "content": "a"}], name="third")
