"""``output_scores``, ``output_logits`` and ``max_time`` of the drop-in."""

import time

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MaxTimeCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paceline import hf
from paceline.api import SamplingParams, from_generation_config
from paceline.engine.readers import AsyncReader, SyncReader
from tests import tiny
from tests.api.drop_in_table import FAMILIES, LENGTHS, PAD, VOCAB, assistant_of, calls, ends_after, model_of, prompts
from tests.api.engines import engine, read_by

FOUR = prompts()
LONG = {"max_new_tokens": 24, "pad_token_id": PAD}
WHOLE = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
DRAFT = {"assistant_model": "noisy", "num_assistant_tokens": 5}
GREEDY = (
    "batch",
    "ends at different times",
    "all processors",
    "guidance_scale 0.4, negative prompts",
    "criterion that ends some rows, no end of text",
)


def drafting(family, given):
    return {name: assistant_of(family) if value == "noisy" else value for name, value in given.items()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("draft", [{}, {**DRAFT, "batch_size": 3}], ids=["plain", "drafted"])
@pytest.mark.parametrize("name", GREEDY)
def test_scores_and_logits_are_those_of_transformers(name, draft, family):
    model, call = model_of(family), calls(family)[name]
    expected = model.generate(**call.inputs, **call.options, **WHOLE)
    found = hf.generate(model, **call.inputs, **call.options, **WHOLE, **drafting(family, draft))
    assert found.sequences.tolist() == expected.sequences.tolist()
    new = found.sequences[:, max(LENGTHS) :]
    ends = torch.tensor(call.options.get("eos_token_id", []))
    ended = torch.isin(new, ends).int().cumsum(1).roll(1, 1)  # rows that have ended before each token
    ended[:, 0] = 0
    for field in ("scores", "logits"):
        ours, theirs = getattr(found, field), getattr(expected, field)
        assert len(ours) == len(theirs) == new.shape[1]
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            running = ended[:, at] == 0
            assert one.shape == (4, VOCAB) and one.dtype == torch.float32 and not one[~running].any()
            # transformers 5.17 penalises the padding token, the last of the vocabulary.
            one, other = one[:, :PAD], other[:, :PAD].float()
            torch.testing.assert_close(one[running], other[running], rtol=1e-5, atol=1e-5)
    assert ended.any() == (name != GREEDY[0] and name != GREEDY[-1])


@pytest.mark.parametrize("draft", [{}, DRAFT], ids=["plain", "drafted"])
def test_scores_of_samples_are_after_temperature_and_filters(draft):
    model = model_of("llama")
    options = dict(do_sample=True, temperature=0.7, top_k=20, top_p=0.9, num_return_sequences=2)
    torch.manual_seed(2)
    found = hf.generate(model, **FOUR, **LONG, **options, **WHOLE, **drafting("llama", draft))
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopKLogitsWarper(20), TopPLogitsWarper(0.9)])
    mask = torch.cat((FOUR["attention_mask"].repeat_interleave(2, dim=0), torch.ones(8, 24, dtype=torch.int64)), dim=1)
    with torch.no_grad():
        logits = model(
            found.sequences, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)
        ).logits.float()
    for at in range(24):
        own = logits[:, max(LENGTHS) + at - 1]
        torch.testing.assert_close(found.logits[at], own, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.scores[at], warpers(None, own), rtol=1e-5, atol=1e-5)
    transitions = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    assert transitions.shape == (8, 24) and bool(transitions.isfinite().all())


def test_scores_are_returned_where_they_are_asked_for():
    model = model_of("llama")
    found = hf.generate(model, **FOUR, **LONG, return_dict_in_generate=True, output_scores=True)
    assert found.logits is None and len(found.scores) == 24
    assert hf.generate(model, **FOUR, **LONG, return_dict_in_generate=True).scores is None
    assert isinstance(hf.generate(model, **FOUR, **LONG, output_scores=True), torch.Tensor)


@pytest.mark.parametrize("reader", [SyncReader, AsyncReader])
def test_engine_keeps_scores_of_the_requests_that_ask_for_them(reader, monkeypatch):
    read_by(monkeypatch, reader)
    running = engine("model", batch_size=3)
    params = SamplingParams(max_tokens=12, seed=5, temperature=0.8, top_k=9, logprobs=0)
    keeping, other = running.submit([[5, 9], [8]], params, keep_scores=True), running.submit([[7, 7]], params)
    for result in keeping.drain():
        for token, one in zip(result.token_ids, result.logprobs, strict=True):
            assert one.scores.shape == one.logits.shape == (tiny.VOCAB,)
            assert int((one.scores > -torch.inf).sum()) == 9
            assert float(one.scores.log_softmax(-1)[token]) == pytest.approx(one.processed, abs=1e-5)
            assert float(one.logits.log_softmax(-1)[token]) == pytest.approx(one.raw, abs=1e-5)
    assert all(one.scores is None and one.logits is None for one in other.drain()[0].logprobs)
    with pytest.raises(ValueError, match="prompt 0: keep_scores without logprobs: give logprobs=0 or more"):
        running.submit([[5]], keep_scores=True)


class Slow:
    """A criterion that takes some time and never stops a row."""

    def __call__(self, input_ids, scores):
        time.sleep(0.02)
        return False


def test_deadline_ends_all_rows_and_pads_them():
    model = model_of("llama")
    whole = model.generate(**FOUR, **LONG)[:, max(LENGTHS) :]
    found = hf.generate(model, **FOUR, **LONG, max_time=0.3, stopping_criteria=[Slow()], batch_size=3)
    new = found[:, max(LENGTHS) :]
    assert 1 <= new.shape[1] < 24
    for row, own in zip(whole.tolist(), new.tolist(), strict=True):
        length = own.index(PAD) if PAD in own else len(own)
        assert length >= 1 and own == row[:length] + [PAD] * (len(own) - length)


def test_deadline_without_padding_cuts_rows_to_the_shortest():
    model, long = model_of("llama"), {"max_new_tokens": 24}
    whole = model.generate(**FOUR, **LONG)[:, max(LENGTHS) :]
    given = dict(stopping_criteria=[Slow(), ends_after(int(whole[0, 1]))])
    new = hf.generate(model, **FOUR, **long, max_time=0.3, **given)[:, max(LENGTHS) :]
    assert 1 <= new.shape[1] < 24 and new.tolist() == whole[:, : new.shape[1]].tolist()


def test_deadline_of_the_caller_replaces_the_option_and_a_distant_one_changes_nothing():
    model = model_of("llama")
    whole = model.generate(**FOUR, **LONG)
    past = dict(stopping_criteria=[MaxTimeCriteria(max_time=-1)])
    assert hf.generate(model, **FOUR, **LONG, max_time=100).tolist() == whole.tolist()
    assert hf.generate(model, **FOUR, **LONG, max_time=100, **past).tolist() == whole[:, : max(LENGTHS) + 1].tolist()
    found = model.generate(**FOUR, **LONG, max_time=1e-9, custom_generate=hf.generate)
    assert found.tolist() == whole[:, : max(LENGTHS) + 1].tolist()
    with pytest.raises(ValueError, match="max_time='3': give a number"):
        hf.generate(model, **FOUR, **LONG, max_time="3")
    with pytest.raises(ValueError, match=r"max_time=3\.0: leave it out, and close the stream"):
        from_generation_config({"max_time": 3})
