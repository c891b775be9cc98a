import copy
import gc
import itertools
import logging
import re
import warnings
import weakref
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.stopping_criteria import ConfidenceCriteria, EosTokenCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from paceline import hf
from paceline.api.generation_fields import HARMLESS, HONOURED
from paceline.api.generation_fields import REFUSED as REFUSED_FIELDS
from paceline.api.loading import load
from paceline.api.targets import load_cached
from paceline.engine.knowledge import MAX_DRAFT_TOKENS
from paceline.hf.inputs import ARGUMENTS, merge
from tests import tiny
from tests.api import checkpoints, drop_in_table
from tests.api.drop_in_table import FAMILIES, PAD, assistant_of, calls, model_of, ours, prompts, theirs, tokens_per_step

pytestmark = pytest.mark.one_in(12)

ONE, FOUR = prompts((9,)), prompts()
LONG = {"max_new_tokens": 24, "pad_token_id": PAD}


@pytest.mark.each_value
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", calls("llama"))
def test_call_matches_transformers(name, family):
    model, call = model_of(family), calls(family)[name]
    found = ours(model, call)
    assert found.sequences.tolist() == theirs(model, call).tolist()
    assert found.sequences.dtype == torch.int64 and found.sequences.device == model.device
    assert tokens_per_step(found) > 1.5 or not call.drafted


@pytest.mark.parametrize("name", drop_in_table.PROCESSED)
def test_processed_tokens_match_transformers_in_float32(name):
    model, assistant = FAMILIES["gpt2"](dtype=torch.float32), FAMILIES["gpt2"](dtype=torch.float32)
    call = calls("gpt2")[name]
    expected = theirs(model, call).tolist()
    with torch.no_grad():
        assistant = tiny.noisy(assistant, 0.02)
    assert ours(model, call).sequences.tolist() == expected
    assert (
        ours(model, replace(call, ours={"assistant_model": assistant, "num_assistant_tokens": 5})).sequences.tolist()
        == expected
    )


def test_calls_of_the_table_have_the_effects_in_their_names():
    model, table = model_of("llama"), calls("llama")
    out = {name: theirs(model, call)[:, max(drop_in_table.LENGTHS) :] for name, call in table.items() if call.inputs}
    pads = {name: (rows == PAD).sum(1).tolist() for name, rows in out.items()}
    assert len(set(pads["ends at different times"])) > 2
    assert not any(pads["criterion that ends some rows, no end of text"])
    for name in ("assistant, end", "criterion, one prompt", "stop_strings", "StopStringCriteria"):
        assert 1 < out[name].shape[1] < 24, name
    assert pads["criterion, batch"] != pads["ends at different times"] != pads["stop_strings, batch"]
    assert out["criterion that ends all rows, no end of text"].shape[1] < 24
    assert out["MaxLengthCriteria before max_new_tokens"].shape[1] == 31
    assert min(pads["ends at different times"]) < 24 - 6 and max(pads["min_new_tokens"]) <= 24 - 6
    assert not torch.equal(out["min_length"], out["ends at different times"])
    unprocessed = out["ends at different times"]
    for name in drop_in_table.PROCESSED:
        changed = [row != other for row, other in zip(out[name].tolist(), unprocessed.tolist(), strict=True)]
        assert sum(changed) > 1, name
    assert all((out["no_repeat_ngram_size 1, padding likely"] == PAD).sum(1) == torch.tensor([1, 0, 0, 0]))


def test_padding_is_not_penalised():
    options = dict(LONG, repetition_penalty=4.0, sequence_bias=[[[PAD], 3.0]])
    together = hf.generate(model_of("llama"), **FOUR, **options)[:, max(drop_in_table.LENGTHS) :]
    for row, length in enumerate(drop_in_table.LENGTHS):
        ids = FOUR["input_ids"][row : row + 1, -length:]
        alone = model_of("llama").generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert together[row].tolist() == alone[0, length:].tolist()
        assert PAD in together[row]


def test_bad_word_that_is_an_end_of_text_token_still_ends():
    ends = calls("llama")["ends at different times"].options["eos_token_id"]
    options = dict(LONG, eos_token_id=ends, bad_words_ids=[[token] for token in ends])
    expected = hf.generate(model_of("llama"), **FOUR, **LONG, eos_token_id=ends)
    assert hf.generate(model_of("llama"), **FOUR, **options).tolist() == expected.tolist()


def test_table_is_printed_for_every_call(capsys, monkeypatch):
    names = ("one prompt", "assistant, batch")
    some = {family: {name: calls(family)[name] for name in names} for family in FAMILIES}
    monkeypatch.setattr(drop_in_table, "calls", some.get)
    disabled = logging.root.manager.disable
    try:
        drop_in_table.main()
    finally:
        logging.disable(disabled)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["| call", "| ---", *(f"| {name}" for name in names)]
    assert all(line.count("yes") == len(FAMILIES) and "NO" not in line for line in lines[2:])


def test_prompt_lookup_drafts_repetitions():
    model, _ = tiny.looping_target()
    ids = torch.tensor([[5, 9, 2], [7, 7, 1]])
    found = hf.generate(model, ids, max_new_tokens=60, prompt_lookup_num_tokens=6, return_dict_in_generate=True)
    assert found.sequences.tolist() == model.generate(ids, max_new_tokens=60).tolist()
    assert tokens_per_step(found) > 3


def test_assistant_types_give_the_same_tokens(tmp_path):
    model, assistant = FAMILIES["llama"](), assistant_of("llama")
    expected = model.generate(**FOUR, **LONG)
    assistant.save_pretrained(tmp_path)
    for draft in (load(assistant), tmp_path, str(tmp_path), "ngram"):
        options = dict(assistant_model=draft, num_assistant_tokens=5, return_dict_in_generate=True)
        found = hf.generate(model, **FOUR, **LONG, **options)
        assert found.sequences.tolist() == expected.tolist()
        assert draft == "ngram" or tokens_per_step(found) > 1.5


def test_num_assistant_tokens_comes_from_option_then_config_then_default():
    model, assistant = FAMILIES["llama"](), copy.deepcopy(assistant_of("llama"))

    def drafted(**options):
        found = hf.generate(model, **ONE, **LONG, assistant_model=assistant, return_dict_in_generate=True, **options)
        return len(found.statistics[0].drafted)

    assert drafted() == MAX_DRAFT_TOKENS
    assistant.generation_config.num_assistant_tokens = 4
    assert drafted() == 4
    model.generation_config.num_assistant_tokens = 3
    assert drafted() == 3
    assert drafted(num_assistant_tokens=2) == 2
    assert drafted(num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0.1) == 3


def test_lists_and_inputs_are_input_ids():
    model = model_of("llama")
    expected = hf.generate(model, **FOUR, **LONG).tolist()
    lists = {name: value.tolist() for name, value in FOUR.items()}
    assert hf.generate(model, **lists, **LONG).tolist() == expected
    assert (
        hf.generate(model, lists["input_ids"], attention_mask=FOUR["attention_mask"].bool(), **LONG).tolist()
        == expected
    )
    assert hf.generate(model, inputs=FOUR["input_ids"].int(), **LONG).tolist() == expected
    row = ONE["input_ids"][0].tolist()
    assert hf.generate(model, row, **LONG).tolist() == hf.generate(model, **ONE, **LONG).tolist()


def test_padded_row_equals_row_alone():
    together = hf.generate(model_of("gpt2"), **FOUR, **LONG)
    for row, length in enumerate(drop_in_table.LENGTHS):
        alone = hf.generate(model_of("gpt2"), FOUR["input_ids"][row : row + 1, -length:], **LONG)
        assert together[row, -24 - length :].tolist() == alone[0].tolist()


def test_return_dict_holds_sequences_and_statistics():
    model = model_of("llama")
    options = dict(**FOUR, **LONG, do_sample=True, num_return_sequences=2)
    drafting = dict(assistant_model=assistant_of("llama"), num_assistant_tokens=5)
    found = hf.generate(model, **options, **drafting, return_dict_in_generate=True)
    assert isinstance(found, GenerateDecoderOnlyOutput) and list(found) == ["sequences", "statistics"]
    assert found.sequences.shape == (8, 33) and len(found.statistics) == 8
    assert all(one.summary.emitted == 24 and one.steps < 24 for one in found.statistics)
    assert found.scores is None and found.past_key_values is None
    assert isinstance(hf.generate(model, **options, return_dict_in_generate=False), torch.Tensor)
    config = GenerationConfig(return_dict_in_generate=True)
    assert isinstance(hf.generate(model, **options, generation_config=config), hf.SpeculativeOutput)


class Recorder(BaseStreamer):
    def __init__(self):
        self.puts, self.ended = [], 0

    def put(self, value):
        self.puts.append(value)

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("drafting", [{}, {"assistant_model": "noisy"}], ids=["plain", "drafted"])
def test_streamer_gets_the_tokens_of_transformers(drafting):
    model = model_of("llama")
    drafting = {name: assistant_of("llama") for name in drafting}
    expected, found = Recorder(), Recorder()
    options = dict(**calls("llama")["assistant, end"].options)
    options.pop("assistant_model")
    model.generate(**ONE, **options, **drafting, streamer=expected)
    out = hf.generate(model, **ONE, **options, **drafting, streamer=found)
    assert found.ended == expected.ended == 1
    assert found.puts[0].tolist() == expected.puts[0].tolist() == ONE["input_ids"].tolist()
    assert torch.cat(found.puts[1:]).tolist() == torch.cat([put.flatten() for put in expected.puts[1:]]).tolist()
    assert torch.cat([put.flatten() for put in found.puts]).tolist() == out[0].tolist()
    assert all(put.shape == (1,) for put in found.puts[1:])


# Sampling: the exact joint distribution of two tokens against many sequences of one call.


def distribution_of_two(model, ids, top_k):
    """Exact probabilities [V, V] of the next two tokens, from transformers' logits."""

    def probs(texts):
        logits = model(texts).logits[:, -1].detach()
        least = logits.topk(top_k).values[:, -1:]
        return logits.masked_fill(logits < least, -torch.inf).softmax(-1)

    first = probs(ids)[0]
    second = probs(torch.cat((ids.expand(len(first), -1), torch.arange(len(first))[:, None]), dim=1))
    return first[:, None] * second


def p_value(counts, probs):
    """Of a chi-square test; 0 if an outcome has probability 0."""
    if counts[probs == 0].any():
        return 0.0
    counts, expected = counts[probs > 0].double(), probs[probs > 0] * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2).double(), statistic / 2))


SAMPLED = {
    "plain": {},
    "assistant": {"assistant_model": "noisy", "num_assistant_tokens": 2},
    "assistant under rejection": {"assistant_model": "noisy", "num_assistant_tokens": 2, "verifier": "rejection"},
    "assistant, verifier with options": {
        "assistant_model": "noisy",
        "num_assistant_tokens": 2,
        "verifier": "lossy_lenient:lenience=1",
    },
}
NUM_SAMPLES = 1000
SAMPLING = dict(do_sample=True, top_k=3, max_new_tokens=2, num_return_sequences=NUM_SAMPLES, batch_size=500)


@pytest.mark.each_value
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("way", SAMPLED)
def test_sampled_tokens_have_the_distribution_of_transformers(way, batch):
    model, assistant = tiny.llama(), tiny.llama()
    with torch.no_grad():
        assistant = tiny.noisy(assistant, 0.1)
    options = {name: assistant if value == "noisy" else value for name, value in SAMPLED[way].items()}
    inputs = prompts((7, 4, 2, 6)[:batch])
    inputs["input_ids"] %= tiny.VOCAB
    torch.manual_seed(5)
    found = hf.generate(model, **inputs, **SAMPLING, **options)[:, 7:].view(batch, NUM_SAMPLES, 2)
    for row in range(batch):
        probs = distribution_of_two(
            model, inputs["input_ids"][row : row + 1, inputs["attention_mask"][row] == 1], top_k=3
        )
        assert int((probs > 0).sum()) >= 9 and float(probs.max()) < 0.9
        index = found[row, :, 0] * tiny.VOCAB + found[row, :, 1]
        assert p_value(index.bincount(minlength=tiny.VOCAB**2).view_as(probs), probs) > 1e-4
        # Neighbours among the sequences are independent: the same test on pairs of their first tokens.
        pairs = found[row, ::2, 0] * tiny.VOCAB + found[row, 1::2, 0]
        first = probs.sum(1)
        assert p_value(pairs.bincount(minlength=tiny.VOCAB**2).view_as(probs), first[:, None] * first) > 1e-4


def test_distribution_test_rejects_another_temperature():
    model = tiny.llama()
    torch.manual_seed(5)
    found = hf.generate(model, [[1, 2, 3]], **SAMPLING, temperature=2.0)[:, 3:]
    probs = distribution_of_two(model, torch.tensor([[1, 2, 3]]), top_k=3)
    assert (
        p_value(
            (found[:, 0] * tiny.VOCAB + found[:, 1]).bincount(minlength=tiny.VOCAB**2).view_as(probs),
            probs,
        )
        < 1e-4
    )


def test_torch_manual_seed_reproduces_samples():
    model, options = model_of("llama"), dict(**FOUR, **LONG, do_sample=True)
    first = (torch.manual_seed(3), hf.generate(model, **options), hf.generate(model, **options))
    drafting = dict(assistant_model=assistant_of("llama"), num_assistant_tokens=5)
    again = (torch.manual_seed(3), hf.generate(model, **options, **drafting, batch_size=1))
    assert torch.equal(first[1], again[1]) and not torch.equal(first[1], first[2])
    before = torch.get_rng_state()
    hf.generate(model, **FOUR, **LONG)
    assert torch.equal(before, torch.get_rng_state())


def test_rows_and_sequences_have_independent_noise():
    ids = torch.tensor([[1, 2, 3], [1, 2, 3], [4, 5, 6]])
    found = hf.generate(model_of("llama"), ids, **LONG, do_sample=True, num_return_sequences=3)
    assert found[:, :3].tolist() == ids.repeat_interleave(3, dim=0).tolist()
    assert len({tuple(row) for row in found.tolist()}) == 9


# The model.


def test_weights_are_not_copied_and_the_model_is_cached():
    model = FAMILIES["llama"]()
    hf.generate(model, **ONE, **LONG)
    loaded = load_cached(model)
    storages = {one.untyped_storage().data_ptr() for one in model.parameters()}
    assert {one.untyped_storage().data_ptr() for one in loaded.lm.state_dict().values()} <= storages
    assert load_cached(model) is loaded
    hf.generate(model, **FOUR, **LONG, assistant_model=model)
    assert load_cached(model) is loaded


def test_model_changes_between_calls_take_effect():
    model = FAMILIES["gpt2"]()
    first = hf.generate(model, **FOUR, **LONG)
    before = load_cached(model)
    model.to(torch.float32)
    assert hf.generate(model, **FOUR, **LONG).tolist() == model.generate(**FOUR, **LONG).tolist()
    assert load_cached(model) is not before and load_cached(model).dtype is torch.float32
    model.to(torch.float64).load_state_dict(FAMILIES["gpt2"](seed=8).state_dict())
    changed = hf.generate(model, **FOUR, **LONG)
    assert changed.tolist() == model.generate(**FOUR, **LONG).tolist() != first.tolist()


def test_model_is_trainable_after_calls_in_inference_mode():
    model = FAMILIES["llama"]()
    with torch.inference_mode():
        found = hf.generate(model, **ONE, **LONG)
    assert found.tolist() == hf.generate(model, **ONE, **LONG).tolist()
    model(ONE["input_ids"], labels=ONE["input_ids"]).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_unreferenced_model_is_freed():
    model = FAMILIES["llama"]()
    hf.generate(model, **ONE, **LONG)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


# The configuration.

OWN = {
    "nothing": {},
    "lengths": dict(max_length=30, min_length=4),
    "sampling": dict(do_sample=True, top_k=7, temperature=0.7, eos_token_id=[3, 5], pad_token_id=2),
}
GIVEN = {
    "none": None,
    "empty": {},
    "new tokens": dict(max_new_tokens=9, top_p=0.8),
    "greedy": dict(do_sample=False, eos_token_id=4),
}
OPTIONS = {
    "none": {},
    "lengths": dict(max_length=25, max_new_tokens=6),
    "switched off": dict(top_k=None, temperature=None, eos_token_id=None),
    "sampling": dict(do_sample=True, min_p=0.1, pad_token_id=1),
}
DEFAULTS = GenerationConfig._get_default_generation_params()


@pytest.mark.filterwarnings("ignore:Passing `generation_config` together")
@pytest.mark.parametrize("own, given, options", list(itertools.product(OWN, GIVEN, OPTIONS)))
def test_effective_configuration_matches_transformers(own, given, options):
    model = tiny.llama()
    model.generation_config = GenerationConfig(**OWN[own])
    config = None if GIVEN[given] is None else GenerationConfig(**GIVEN[given])
    expected, unused = model._prepare_generation_config(config, **OPTIONS[options])
    fields = {} if config is None else config.to_dict()
    found = merge(model.generation_config.to_dict(), fields, OPTIONS[options])
    assert not unused
    for name in ("max_length", "max_new_tokens", "min_length", "do_sample", "temperature", "top_k", "top_p", "min_p"):
        value = DEFAULTS.get(name) if found.get(name) is None else found[name]
        wanted = getattr(expected, name)
        if wanted is None:
            wanted = {"top_k": 0, "temperature": 1.0}.get(name)
        assert value == wanted, name
    for name in ("eos_token_id", "pad_token_id"):
        assert found.get(name) == getattr(expected, name), name


def test_model_generation_config_is_applied_or_refused():
    model = FAMILIES["llama"]()
    text = hf.generate(model, **ONE, **LONG)[0, 9:].tolist()
    ends = next(token for token in text[4:] if token not in text[:4])
    model.generation_config = GenerationConfig(eos_token_id=ends, max_new_tokens=20, encoder_repetition_penalty=1.05)
    model.generation_config.chat_format = "chatml"  # unknown to transformers, and read by nothing
    message = "penalty=1.05 of model.generation_config is not supported: give encoder_repetition_penalty=1$"
    with pytest.raises(ValueError, match=message):
        hf.generate(model, **ONE)
    expected = model.generate(**ONE, encoder_repetition_penalty=1.0)
    assert hf.generate(model, **ONE, encoder_repetition_penalty=1.0).tolist() == expected.tolist()
    assert expected.shape[1] == 9 + text.index(ends) + 1 < 9 + 20


# Criteria.


class Broken(RuntimeError):
    pass


class Counting(StoppingCriteria):
    """Raises at its third call for a prompt that ends in ``token``."""

    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        if input_ids.shape == (1, 12) and int(input_ids[0, 8]) == self.token:
            raise Broken("out of order")
        return torch.zeros(1, dtype=torch.bool)


@pytest.mark.parametrize("streamed", [False, True])
def test_exception_of_a_criterion_is_raised_with_the_row(streamed):
    row = 0 if streamed else 2
    inputs = ONE if streamed else FOUR
    token = int(inputs["input_ids"][row, -1])
    streamer = Recorder() if streamed else None
    with pytest.raises(Broken, match="out of order") as failure:
        hf.generate(model_of("llama"), **inputs, **LONG, stopping_criteria=[Counting(token)], streamer=streamer)
    assert failure.value.__notes__ == [f"row {row}: raised by Counting, which was called with scores=None"]
    assert streamer is None or (len(streamer.puts) <= 4 and not streamer.ended)


def test_criterion_sees_padded_ids_of_one_row_and_no_scores():
    seen = []

    def criterion(input_ids, scores):
        assert scores is None and input_ids.dtype == torch.int64
        seen.append(input_ids[0].tolist())
        return False

    found = hf.generate(model_of("llama"), **FOUR, max_new_tokens=5, stopping_criteria=[criterion])
    assert sorted(seen) == sorted(row[:end] for row in found.tolist() for end in range(10, 15))


def test_criterion_result_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"a result of shape \[4\] for one row") as failure:
        hf.generate(model_of("llama"), **FOUR, **LONG, stopping_criteria=[lambda ids, scores: torch.zeros(4)])
    assert failure.value.__notes__[0].startswith("row ")


def test_criterion_that_needs_scores_fails_with_the_reason():
    def impatient(input_ids, scores):
        return scores[-1].max() > 0

    with pytest.raises(TypeError) as failure:
        hf.generate(model_of("llama"), **ONE, **LONG, stopping_criteria=StoppingCriteriaList([impatient]))
    assert failure.value.__notes__ == ["row 0: raised by function, which was called with scores=None"]


# Refusals: arguments, and what the message says.


def masked(*rows):
    mask = torch.ones_like(FOUR["input_ids"])
    for row, zeros in rows:
        mask[row, zeros] = 0
    return {"input_ids": FOUR["input_ids"], "attention_mask": mask}


SAMPLE = {"do_sample": True}
REFUSED = [
    (dict(repetition_penalty=-1.0), "repetition_penalty=-1.0: give a finite number above 0"),
    (
        dict(sequence_bias=[[[3, 300], 1.0]]),
        r"^sequence_bias: \[300\] leave the target's vocabulary of 300 tokens; give ids below 300",
    ),
    (dict(bad_words_ids=[[300], [301, 2]]), r"^bad_words_ids: \[300, 301\] leave the target"),
    (dict(no_repeat_ngram_size=-1), "no_repeat_ngram_size=-1: give 0"),
    (dict(SAMPLE, typical_p=0.0), "typical_p=0.0: give a number above 0 and at most 1"),
    (dict(generation_config=GenerationConfig(num_beams=3)), "^num_beams=3 is not supported: give num_beams=1$"),
    (
        dict(num_beams=2, penalty_alpha=1.2, max_new_token=3, position_ids=torch.zeros(1)),
        "^unknown option 'max_new_token', near max_new_tokens.*: leave it out; position_ids is not supported: leave it "
        "out; num_beams=2 .*; penalty_alpha=1.2 .*",
    ),
    (dict(best_of=None), "unknown option 'best_of': leave it out"),
    (dict(negative_prompt_ids=[[1, 2]]), "negative_prompt_ids without guidance_scale: give one other than 1"),
    (
        dict(negative_prompt_ids=[[1, 2], [3, 4]], guidance_scale=1.5),
        "2 negative prompts for 1 prompts: give one for each",
    ),
    (
        dict(negative_prompt_ids=[[1, 2]], negative_prompt_attention_mask=[[0, 1]], guidance_scale=1.5),
        "negative_prompt_attention_mask has zeros: give negative prompts of one length",
    ),
    (
        dict(negative_prompt_attention_mask=[[0, 1]], guidance_scale=1.5),
        "negative_prompt_attention_mask without negative_prompt_ids",
    ),
    (dict(prefix_allowed_tokens_fn=3), "prefix_allowed_tokens_fn of type int: give a function"),
    (
        dict(
            logits_processor=LogitsProcessorList(
                [RepetitionPenaltyLogitsProcessor(1.2), MinLengthLogitsProcessor(3, 2)]
            ),
            min_length=2,
        ),
        r"^logits_processor\[1\], MinLengthLogitsProcessor, and min_length=2 do the same: give one of them$",
    ),
    (
        dict(stopping_criteria=[ConfidenceCriteria(0.4)]),
        r"stopping_criteria\[0\], ConfidenceCriteria, needs scores: leave it out",
    ),
    (dict(stopping_criteria=[3]), r"stopping_criteria\[0\], int, cannot be called: leave it out"),
    (dict(stopping_criteria=print), "stopping_criteria of type builtin_function_or_method: give a list"),
    (
        dict(stopping_criteria=[EosTokenCriteria(torch.tensor([3]))]),
        "nothing to fill up rows that end early: give pad_token_id",
    ),
    (
        dict(stopping_criteria=[EosTokenCriteria(torch.tensor([3]))], eos_token_id=4, min_new_tokens=2),
        r"stopping_criteria end at \[3\], and min_new_tokens and min_length only ban \[4\]: give the same",
    ),
    (dict(num_return_sequences=2), "num_return_sequences=2 without do_sample=True: greedy decoding"),
    (dict(SAMPLE, temperature=0), "do_sample=True with temperature=0: give do_sample=False"),
    (dict(max_new_tokens=0), "max_new_tokens=0: give at least 1"),
    (dict(max_length=9), "max_length=9 counts the prompt too, and its 9 tokens leave no room"),
    (
        dict(max_new_tokens=125),
        "row 0: 9 tokens and 125 new ones exceed the model's context of 128: lower max_new_tokens",
    ),
    (dict(stop_strings="x"), r"stop_strings=\['x'\] need the model's tokenizer, and none is given: give tokenizer"),
    (
        dict(stop_strings="x", tokenizer=3),
        "need the model's tokenizer, and int is not a transformers tokenizer: give tok",
    ),
    (
        dict(assistant_model="ngram", prompt_lookup_num_tokens=3),
        "assistant_model and prompt_lookup_num_tokens=3 would both draft: give one of them",
    ),
    (dict(prompt_lookup_num_tokens=0), "prompt_lookup_num_tokens=0: give at least 1"),
    (dict(assistant_model="nowhere"), "unknown drafter 'nowhere'"),
    (dict(assistant_model=tiny.llama()), r"target .* \(300 tokens\) and draft .* \(61 tokens\)"),
    (dict(verifier="typical"), "unknown verifier 'typical'"),
    (dict(batch_size="4"), "batch_size='4': give an integer"),
    (dict(assistant_tokenizer=3), "assistant_tokenizer needs an assistant_model that is loaded"),
    (dict(assistant_model=tiny.llama(), assistant_tokenizer=3), "tokenizer of type NoneType: with assistant_tokenizer"),
    (dict(generation_config={"top_k": 3}), "generation_config of type dict: give a Generat"),
    (dict(generation_config=GenerationConfig(temprature=2.0)), "unknown option 'temprature', near temperature"),
    (dict(FOUR, streamer=Recorder()), "streamer with 4 rows: give one prompt"),
    (
        dict(SAMPLE, num_return_sequences=3, streamer=Recorder()),
        "streamer with 3 rows: give one prompt and num_return_sequences=1",
    ),
    (dict(inputs=ONE["input_ids"]), "inputs and input_ids are the same argument"),
    (dict(input_ids=None, attention_mask=None), "no input_ids, and the model has no bos_token_id"),
    (dict(input_ids=ONE), r"input_ids is a mapping of input_ids, .*: give generate\(model, \*\*inputs\)"),
    (dict(input_ids="text"), "input_ids is not a 2-d table of integers"),
    (dict(input_ids=[[1, 2], [3]]), "input_ids is not a 2-d table of integers .*: give rows of one length, padded on"),
    (dict(input_ids=torch.ones(1, 3)), "input_ids of torch.float32: give integers"),
    (dict(input_ids=torch.ones(3).long()), r"input_ids of shape \[3\]: give \[rows, tokens\]"),
    (dict(input_ids=torch.ones(2, 0).long()), r"input_ids of shape \[2, 0\]: give \[rows, tokens\], at least"),
    (dict(attention_mask=torch.ones(1, 3)), r"attention_mask of shape \[1, 3\] for input_ids of shape \[1, 9"),
    (masked((2, [7, 8])), "row 2 is padded on the right: set tokenizer.padding_side = 'left'"),
    (masked((1, [0, 1]), (3, [4])), "row 3 has padding between tokens, at token 4: give an attention_mask without"),
    (masked((1, slice(None))), "row 1 is padding only: give at least one token"),
    (dict(input_ids=[[4, 300]], attention_mask=None), r"row 0: token ids 4\.\.300 leave the model's voc"),
    (
        dict(input_ids=[[4, PAD, 5]], attention_mask=None, pad_token_id=PAD),
        "row 0 has padding between tokens, at token 1",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_unsupported_argument_is_refused_by_name(options, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=message):
            hf.generate(model_of("llama"), **{**ONE, **options})


NEUTRAL = dict(
    num_beams=1,
    repetition_penalty=1.0,
    inputs_embeds=None,
    past_key_values=None,
    negative_prompt_ids=None,
    custom_generate=None,
    labels=ONE["input_ids"],
    synced_gpus=False,
    trust_remote_code=False,
    use_model_defaults=True,
    logits_processor=LogitsProcessorList(),
    stopping_criteria=[],
    tokenizer=None,
    output_scores=True,  # unread without return_dict_in_generate
    num_assistant_tokens_schedule="dynamic",
    cache_implementation="static",
)


def test_neutral_values_change_nothing():
    plain = hf.generate(model_of("llama"), **FOUR, **LONG)
    assert hf.generate(model_of("llama"), **FOUR, **LONG, **NEUTRAL).tolist() == plain.tolist()


MODELS = [
    (
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        ),
        "unsupported architecture 't5'",
    ),
    (lambda: tiny.llama().model, "LlamaModel has no language-model head"),
    (lambda: torch.nn.Linear(2, 2), "a model of type Linear: give a loaded transformers model"),
    (lambda: load(tiny.llama()), "a model of type Loaded: .*; paceline.generate takes"),
    (lambda: str(checkpoints.pair().target), "a model of type str: give a loaded transformers model"),
]


@pytest.mark.parametrize(("make", "message"), MODELS)
def test_unsupported_model_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        hf.generate(make(), [[1, 2]])


def test_page_names_every_field_and_argument():
    text = (Path(__file__).parents[2] / "docs" / "drop_in.md").read_text(encoding="utf-8")
    names = [
        *HONOURED,
        *HARMLESS,
        *REFUSED_FIELDS,
        *ARGUMENTS,
        *(signature(hf.generate).parameters.keys() - {"options"}),
        *(signature(hf.patch).parameters.keys()),
        "attention_mask",
    ]
    assert [name for name in names if not re.search(rf"`{name}`", text)] == []
