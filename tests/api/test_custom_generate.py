"""``model.generate(..., custom_generate=paceline.hf.generate)``: transformers prepares the call, Paceline decodes."""

import warnings
from functools import partial

import pytest
import torch
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
)

from paceline import hf
from tests.api.drop_in_table import PAD, assistant_of, calls, ends_after, model_of, prompts, theirs, tokenizer

FOUR = prompts()
LONG = {"max_new_tokens": 24, "pad_token_id": PAD}
DRAFTING = ("assistant_model", "num_assistant_tokens")  # transformers gives them to no custom function
# Without the tokenizer, transformers cannot make the criteria of stop strings.
NAMES = [name for name in calls("llama") if "stop_strings" not in name]


def through(model, custom=hf.generate, **options):
    """What a model's own ``generate`` returns with the ``custom`` loop."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using the model-agnostic default")
        return model.generate(**options, custom_generate=custom)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", NAMES)
def test_custom_generate_gives_the_tokens_of_transformers(name):
    model, call = model_of("llama"), calls("llama")[name]
    options = {name: value for name, value in call.options.items() if name not in DRAFTING}
    assert through(model, **call.inputs, **options).tolist() == theirs(model, call).tolist()


def test_drafting_options_are_bound_to_the_function():
    model = model_of("llama")
    custom = partial(hf.generate, assistant_model=assistant_of("llama"), num_assistant_tokens=5)
    found = through(model, custom, **FOUR, **LONG, return_dict_in_generate=True, batch_size=2)
    assert found.sequences.tolist() == model.generate(**FOUR, **LONG).tolist()
    assert all(one.steps < 24 / 1.5 for one in found.statistics)
    looked_up = through(model, **FOUR, **LONG, prompt_lookup_num_tokens=4, verifier="rejection")
    assert looked_up.tolist() == found.sequences.tolist()


def test_stop_strings_are_bound_to_the_function():
    model, call = model_of("llama"), calls("llama")["stop_strings"]
    stops = {name: call.options[name] for name in ("stop_strings", "tokenizer")}
    assert stops["tokenizer"] is tokenizer()
    found = through(model, partial(hf.generate, **stops), **call.inputs, **LONG)
    assert found.tolist() == theirs(model, call).tolist()


def test_sequences_are_returned_for_every_prompt():
    torch.manual_seed(3)
    found = through(model_of("llama"), **FOUR, **LONG, do_sample=True, num_return_sequences=3, top_k=None)
    assert found[:, :9].tolist() == FOUR["input_ids"].repeat_interleave(3, dim=0).tolist()
    assert len({tuple(row) for row in found.tolist()}) == 12
    torch.manual_seed(3)
    direct = hf.generate(model_of("llama"), **FOUR, **LONG, do_sample=True, num_return_sequences=3, top_k=0)
    assert found.tolist() == direct.tolist()


class Favouring(LogitsProcessor):
    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, 7 + input_ids.shape[1] % 3] += 1e6
        return scores


OWN = {
    "processor": dict(logits_processor=LogitsProcessorList([Favouring()]), repetition_penalty=1.2),
    "function of the row": dict(prefix_allowed_tokens_fn=lambda row, ids: [row, 4 + int(ids[-1]) % 7, 20]),
    "criterion": dict(stopping_criteria=StoppingCriteriaList([ends_after(*range(100))])),
}


@pytest.mark.parametrize("kind", OWN)
def test_processors_and_criteria_of_the_caller_are_called(kind):
    model, options = model_of("llama"), {**FOUR, **LONG, **OWN[kind]}
    found = through(model, **options)
    assert found.tolist() == model.generate(**options).tolist()
    assert found.tolist() != model.generate(**FOUR, **LONG).tolist()


def test_processor_in_place_of_an_option_is_refused():
    given = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.5)])
    message = "RepetitionPenaltyLogitsProcessor, and repetition_penalty=1.2 do the same: give one of them"
    with pytest.raises(ValueError, match=message):
        through(model_of("llama"), **FOUR, **LONG, repetition_penalty=1.2, logits_processor=given)


REFUSED = [
    (dict(num_beams=2), "num_beams=2 is not supported: give num_beams=1"),
    (dict(past_key_values=DynamicCache()), "past_key_values is not supported: leave it out"),
    (dict(position_ids=torch.arange(9)[None] + 3), "position_ids is not supported: leave it out"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_unsupported_argument_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        through(model_of("llama"), **prompts((9,)), **LONG, **options)
