"""Calls of both ``generate`` functions; ``python -m tests.api.drop_in_table`` prints a table that compares them."""

import logging
import re
import warnings
from dataclasses import dataclass, field
from functools import cache

import torch
from transformers import (
    GenerationConfig,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.stopping_criteria import EosTokenCriteria

from paceline import hf
from tests import tiny
from tests.api.checkpoints import make_tokenizer

VOCAB = 300  # that of the tokenizer
PAD = 299
LENGTHS = (9, 4, 7, 1)  # of the rows of a batch, without padding
PROCESSED = (  # calls with options that change logits; each comes drafted too
    "repetition_penalty 1.3",
    "repetition_penalty 0.5",
    "no_repeat_ngram_size 1",
    "no_repeat_ngram_size 2",
    "no_repeat_ngram_size 4",
    "no_repeat_ngram_size 1, padding likely",
    "no_repeat_ngram_size 2, padding likely",
    "no_repeat_ngram_size 3, padding likely",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
    "guidance_scale",
    "guidance_scale 0.4, negative prompts",
    "all processors",
)
FAMILIES = {
    "llama": lambda **options: tiny.llama(vocab_size=VOCAB, **options),
    "gpt2": lambda **options: tiny.gpt2(vocab_size=VOCAB, **options),
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of both, and those of ours alone, such as drafters, which transformers refuses for a batch."""

    inputs: dict
    options: dict = field(default_factory=dict)
    ours: dict = field(default_factory=dict)
    drafted: bool = False

    @property
    def batch(self):
        return len(self.inputs["input_ids"]) if "input_ids" in self.inputs else 1


@cache
def model_of(family):
    """A random model without end-of-text tokens; treat as read-only."""
    return FAMILIES[family]()


@cache
def assistant_of(family):
    """The model with noise on its weights."""
    with torch.no_grad():
        return tiny.noisy(FAMILIES[family](), 0.02)


@cache
def tokenizer():
    return PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(VOCAB))


def prompts(lengths=LENGTHS, pad=PAD, seed=0):
    """Random prompts, left-padded: input_ids and attention_mask. Prompts contain no padding token."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB - 1, (len(lengths), max(lengths)), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths):
        ids[row, : max(lengths) - length], mask[row, : max(lengths) - length] = pad, 0
    return {"input_ids": ids, "attention_mask": mask}


def ends_after(*tokens):
    """A criterion as a function, for all rows at once: the last token is one of ``tokens``."""
    return lambda ids, scores: torch.isin(ids[:, -1], torch.tensor(tokens))


def processed(plain, ends, draft):
    """Options that change logits, by name, without and with a draft; ``plain`` [B, T] are the tokens without them."""
    first, some = plain[:, 0].tolist(), sorted(set(plain[:, :9].flatten().tolist()))
    pairs = [plain[row, start : start + 2].tolist() for row in range(4) for start in (1, 4)]
    repeating = dict(repetition_penalty=0.5, suppress_tokens=[PAD])  # transformers 5.17 would favour padding
    options = {
        "repetition_penalty 1.3": dict(repetition_penalty=1.3),
        "repetition_penalty 0.5": repeating,
        "no_repeat_ngram_size 1": dict(no_repeat_ngram_size=1),
        "no_repeat_ngram_size 2": dict(no_repeat_ngram_size=2, **repeating),
        "no_repeat_ngram_size 4": dict(no_repeat_ngram_size=4, **repeating),
        **{
            f"no_repeat_ngram_size {size}, padding likely": dict(
                no_repeat_ngram_size=size, sequence_bias=[[[PAD], 9.0]], eos_token_id=-1
            )
            for size in (1, 2, 3)
        },
        "bad_words_ids": dict(bad_words_ids=[*pairs, [first[0]], [ends[0]], [*pairs[0], pairs[1][0]]]),
        "suppress_tokens": dict(suppress_tokens=[*some[::2], -1, 5000]),
        "begin_suppress_tokens": dict(begin_suppress_tokens=[*first, -1]),
        "sequence_bias": dict(
            sequence_bias=[[[first[1]], -3.0], [pairs[1], -9.5], [pairs[4], 4.0], [[PAD], 1.25], [[ends[0]], -1.0]]
        ),
        "guidance_scale": dict(guidance_scale=1.7),
        "guidance_scale 0.4, negative prompts": dict(
            guidance_scale=0.4, negative_prompt_ids=torch.tensor([[7, 3, 9]] * 4), repetition_penalty=1.2
        ),
        "all processors": dict(
            repetition_penalty=1.2,
            no_repeat_ngram_size=3,
            bad_words_ids=pairs,
            suppress_tokens=some[1::3],
            begin_suppress_tokens=first,
            sequence_bias=[[[some[0]], 1.5], [pairs[2], 2.0]],
            min_new_tokens=5,
        ),
    }
    return {
        f"{name}{way}": (options[name], ours) for name in PROCESSED for way, ours in (("", {}), (", drafted", draft))
    }


@cache
def calls(family):
    """Calls by name."""
    model, assistant = model_of(family), assistant_of(family)
    one, four = prompts((9,)), prompts()
    plain = model.generate(**four, max_new_tokens=24, pad_token_id=PAD)[:, max(LENGTHS) :]
    ends = [int(plain[row, column]) for row, column in ((0, 7), (1, 2), (2, 12))]
    stops = [re.search("[!-~]{2}", tokenizer().decode(plain[row, 8:])).group() for row in (0, 3)]
    repeating = {"input_ids": torch.tensor([[5, 6, 7, 8] * 6]), "attention_mask": torch.ones(1, 24, dtype=torch.long)}
    draft = {"assistant_model": assistant, "num_assistant_tokens": 5}
    lookup = {"prompt_lookup_num_tokens": 4}
    long = {"max_new_tokens": 24, "pad_token_id": PAD}
    ended = {**long, "eos_token_id": ends}
    return {
        "one prompt": Call(inputs=one, options=long),
        "defaults": Call(inputs=one),
        "default length of a batch": Call(inputs=four, options={"pad_token_id": PAD}),
        "no prompt": Call(inputs={}, options={"bos_token_id": 7, **long}),
        "batch": Call(inputs=four, options=long),
        "batch, no mask, padding token known": Call(inputs={"input_ids": four["input_ids"]}, options=long),
        "batch, no mask, padding that may end": Call(
            inputs={"input_ids": four["input_ids"]}, options={**long, "eos_token_id": [*ends, PAD]}
        ),
        "assistant": Call(inputs=one, options={**long, **draft}, drafted=True),
        "assistant, 3 tokens": Call(
            inputs=one,
            options={**long, **draft, "num_assistant_tokens": 3},
            ours={"verifier": "rejection"},
            drafted=True,
        ),
        "assistant, batch": Call(inputs=four, options=long, ours=draft, drafted=True),
        "assistant, batch with ends": Call(inputs=four, options=ended, ours=draft, drafted=True),
        "assistant, end": Call(inputs=one, options={**ended, **draft}, drafted=True),
        "prompt lookup": Call(inputs=repeating, options={**long, **lookup, "max_new_tokens": 80}),
        "prompt lookup, batch": Call(inputs=four, options=long, ours={**lookup, "max_matching_ngram_size": 3}),
        "ends at different times": Call(inputs=four, options=ended),
        "one end, padding by it": Call(inputs=four, options={"max_new_tokens": 24, "eos_token_id": ends[0]}),
        "end that never comes": Call(inputs=four, options={**long, "eos_token_id": -1}),
        "min_new_tokens": Call(inputs=four, options={**ended, "min_new_tokens": 6}, ours=draft, drafted=True),
        "min_length": Call(inputs=four, options={**ended, "min_length": 16}),
        "min_new_tokens before min_length": Call(inputs=four, options={**ended, "min_new_tokens": 2, "min_length": 30}),
        "max_length": Call(inputs=four, options={"max_length": 21, "pad_token_id": PAD}),
        "max_new_tokens before max_length": Call(inputs=four, options={**long, "max_length": 12}),
        "generation_config": Call(
            inputs=four,
            options={"generation_config": GenerationConfig(max_new_tokens=11, eos_token_id=ends, pad_token_id=PAD)},
        ),
        "generation_config and options": Call(
            inputs=four, options={"generation_config": GenerationConfig(max_new_tokens=11, pad_token_id=PAD), **ended}
        ),
        "sampling options without do_sample": Call(inputs=four, options={**long, "temperature": 0.3, "top_k": 5}),
        "use_cache=False": Call(inputs=one, options={**long, "use_cache": False}),
        "criterion, one prompt": Call(inputs=one, options={**long, "stopping_criteria": [ends_after(ends[0])]}),
        "criterion, batch": Call(inputs=four, options={**ended, "stopping_criteria": [ends_after(int(plain[3, 5]))]}),
        "criterion that ends all rows, no end of text": Call(
            inputs=four,
            options={
                **long,
                "stopping_criteria": StoppingCriteriaList(
                    [ends_after(*(int(plain[row, 3 * row + 1]) for row in range(4)))]
                ),
            },
            ours=draft,
        ),
        "criterion that ends some rows, no end of text": Call(
            inputs=four, options={**long, "stopping_criteria": [ends_after(int(plain[1, 3]))]}
        ),
        "MaxLengthCriteria": Call(
            inputs=four, options={**ended, "stopping_criteria": [MaxLengthCriteria(max_length=14)]}, ours=draft
        ),
        "MaxLengthCriteria before max_new_tokens": Call(
            inputs=four, options={**long, "stopping_criteria": [MaxLengthCriteria(max_length=40)]}
        ),
        "MaxTimeCriteria": Call(inputs=four, options={**ended, "stopping_criteria": [MaxTimeCriteria(max_time=-1)]}),
        "EosTokenCriteria": Call(
            inputs=four,
            options={
                **ended,
                "stopping_criteria": [EosTokenCriteria(torch.tensor([int(plain[0, 4]), int(plain[2, 9])]))],
            },
        ),
        "stop_strings": Call(inputs=one, options={**long, "stop_strings": stops, "tokenizer": tokenizer()}),
        "stop_strings, batch": Call(
            inputs=four, options={**ended, "stop_strings": stops[1], "tokenizer": tokenizer()}, ours=draft
        ),
        "StopStringCriteria": Call(
            inputs=one, options={**long, "stopping_criteria": [StopStringCriteria(tokenizer(), stops)]}
        ),
        "assistant, batch, rejection": Call(
            inputs=four, options=ended, ours={**draft, "verifier": "rejection"}, drafted=True
        ),
        **{
            name: Call(inputs=four, options={**ended, **options}, ours=ours, drafted=bool(ours))
            for name, (options, ours) in processed(plain, ends, draft).items()
        },
        "rows in turns": Call(inputs=four, options=ended, ours={"batch_size": 2}),
    }


def theirs(model, call):
    """Token ids from transformers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using the model-agnostic default")
        return model.generate(**call.inputs, **call.options)


def ours(model, call):
    """Token ids from Paceline, with statistics."""
    return hf.generate(model, **call.inputs, **call.options, **call.ours, return_dict_in_generate=True)


def tokens_per_step(output):
    """The mean over all rows."""
    emitted = sum(one.summary.emitted for one in output.statistics)
    return emitted / sum(one.steps for one in output.statistics)


def main():
    """Print the table."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    print("| call | batch | " + " | ".join(f"{family}: equal | tokens per step" for family in FAMILIES) + " |")
    print("| --- | --- | " + " | ".join("--- | ---" for _ in FAMILIES) + " |")
    for name in calls("llama"):
        cells = []
        for family in FAMILIES:
            call = calls(family)[name]
            expected, found = theirs(model_of(family), call), ours(model_of(family), call)
            cells += ["yes" if torch.equal(expected, found.sequences) else "NO", f"{tokens_per_step(found):.2f}"]
        print(f"| {name} | {call.batch} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
