"""Guided and constrained rows give exactly the outputs that were recorded before the decode step was rearranged.

Everything goes through the public interface. ``python -m tests.conformance.test_recorded_outputs --record`` writes
``recorded_outputs.json`` again; a FILE after it writes there instead.
"""

import json
import math
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from paceline import Engine, SamplingParams, load
from tests.conformance.recorded_models import checkpoints

pytestmark = pytest.mark.one_in(15)

RECORDED = Path(__file__).with_name("recorded_outputs.json")
TOLERANCE = 1e-9  # of log-probabilities: other processors round differently

REPEATING = [5, 9, 7, 40, 5, 9, 7, 40, 5, 9]
FIRST, SECOND, THIRD, FOURTH = "the red 123", "abc in the green", "the red 12", "null abc on "
DIGITS = list(range(17, 27))  # ids of the bytes "0" to "9" in the recorded tokenizer
MANY = list(range(5, 65, 3))
STOPS = list(range(2, 122, 2))


def by_history(input_ids, scores):
    """In the way of transformers: what comes depends on all that precedes it, and on how much."""
    scores = scores.clone()
    scores[:, int(input_ids.sum()) % scores.shape[-1]] += 6.0
    scores[:, : input_ids.shape[1]] -= 2.0
    return scores


def by_output(prompt_ids, output_ids, logits):
    """In the way of vLLM: no token follows itself, and odd ones are less likely after an even number of tokens."""
    logits = logits.clone()
    if output_ids:
        logits[output_ids[-1]] = -math.inf
    if len(output_ids) % 2 == 0:
        logits[1::2] -= 3.0
    return logits


def raises_late(prompt_ids, output_ids, logits):
    """Raises after four tokens."""
    if len(output_ids) >= 4:
        raise LookupError("no such table")
    return logits


def allows_nothing_late(prompt_ids, output_ids, logits):
    """Leaves no token after three."""
    return torch.full_like(logits, -math.inf) if len(output_ids) >= 3 else logits


greedy = partial(SamplingParams, temperature=0, max_tokens=7, seed=1)
sampled = partial(SamplingParams, temperature=1.0, max_tokens=7, ignore_eos=True)

COLOURS = {"choice": ["red", "green and abc", "the null"]}
WORD = {"regex": "(ab|the |[0-9]){2,5}!"}
LETTERS = {"regex": "[a-z]+"}
SOME = {"regex": "[!-@]+"}  # of the characters "%" to "^" that MANY allows, about half
DOCUMENT = {
    "json": {
        "type": "object",
        "properties": {"red": {"type": "boolean"}, "abc": {"type": "integer", "minimum": -9, "maximum": 120}},
        "required": ["red", "abc"],
        "additionalProperties": False,
    },
    "disable_any_whitespace": True,
}
LARK = {"grammar": 'start: item ("," item)* ";"\nitem: "red" | "green" | /[0-9]{1,3}/'}

GUIDED = [
    (FIRST, greedy(guidance_scale=1.7)),
    (REPEATING, greedy()),
    (SECOND, sampled(guidance_scale=2.5, negative_prompt="the green", seed=3, n=2)),
    (THIRD, sampled(seed=5, top_k=12)),
    (REPEATING, sampled(guidance_scale=1.5, allowed_token_ids=REPEATING, seed=6)),
    (FOURTH, sampled(guidance_scale=0.4, negative_prompt=[9] * 21, seed=8, top_p=0.8, temperature=0.7)),
]
GRAMMARS = [
    (FIRST, SamplingParams(structured_outputs=WORD, seed=2, max_tokens=12)),
    (REPEATING, greedy()),
    (SECOND, greedy(structured_outputs=COLOURS, max_tokens=12)),
    (THIRD, SamplingParams(structured_outputs=DOCUMENT, seed=6, max_tokens=20, top_k=40)),
    (FOURTH, sampled(seed=7)),
    (SECOND, sampled(structured_outputs=SOME, allowed_token_ids=MANY, seed=5)),
    (FIRST, SamplingParams(structured_outputs=LARK, seed=4, max_tokens=12, n=2)),
]
CALLABLES = [
    (FIRST, sampled(logits_processors=[by_history], seed=2)),
    (REPEATING, greedy(logits_processors=[by_output])),
    (SECOND, sampled(logits_processors=[raises_late], seed=3)),
    (THIRD, sampled(seed=4)),
    (SECOND, greedy(structured_outputs=LETTERS, allowed_token_ids=DIGITS)),  # fails alone: no token is left
    (FOURTH, sampled(structured_outputs=WORD, logits_processors=[by_history], seed=9)),
    (REPEATING, greedy(logits_processors=[allows_nothing_late])),
]
OPTIONS = [
    (FIRST, sampled(allowed_token_ids=DIGITS, seed=2)),
    (REPEATING, sampled(allowed_token_ids=REPEATING, seed=9)),
    (SECOND, sampled(bad_words=["the", "red"], suppress_tokens=[5, 9], seed=3)),
    (REPEATING, greedy(bad_words_ids=[[9, 7], [40]], no_repeat_ngram_size=2, begin_suppress_tokens=[7])),
    (THIRD, SamplingParams(min_tokens=5, stop_token_ids=STOPS, seed=4, max_tokens=12)),
    (FOURTH, sampled(repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=-0.3, seed=5)),
    (FIRST, sampled(stop=["e", "1"], min_tokens=2, seed=6, max_tokens=12)),
    (SECOND, sampled(sequence_bias={(5,): 4.0, (5, 9): 9.0}, logit_bias={7: 3.0}, seed=7)),
]
COMBINED = [
    (FIRST, SamplingParams(guidance_scale=1.6, structured_outputs=WORD, seed=2, max_tokens=10)),
    (
        SECOND,
        greedy(guidance_scale=2.0, negative_prompt="the", repetition_penalty=1.5, frequency_penalty=0.4, top_k=9),
    ),
    (THIRD, sampled(seed=5)),
    (SECOND, sampled(guidance_scale=1.8, structured_outputs=SOME, allowed_token_ids=MANY, seed=5)),
    (
        FOURTH,
        sampled(
            guidance_scale=1.3,
            negative_prompt=[9, 9, 9],
            repetition_penalty=1.2,
            presence_penalty=0.5,
            bad_words=["the"],
            seed=4,
        ),
    ),
    (FIRST, sampled(guidance_scale=1.5, logits_processors=[by_history], seed=8)),
    (SECOND, SamplingParams(guidance_scale=0.6, structured_outputs=DOCUMENT, seed=9, max_tokens=20)),
    (REPEATING, sampled(guidance_scale=2.0, logits_processors=[raises_late], seed=1)),
    (SECOND, greedy(guidance_scale=2.0, structured_outputs=LETTERS, allowed_token_ids=DIGITS)),
    (
        THIRD,
        SamplingParams(guidance_scale=3.0, min_tokens=3, stop_token_ids=STOPS, seed=7, max_tokens=8),
    ),
]
LOGPROBS = [
    (FIRST, sampled(guidance_scale=1.7, seed=2, logprobs=2, top_k=30, max_tokens=5)),
    (SECOND, SamplingParams(structured_outputs=WORD, seed=3, logprobs=2, max_tokens=6)),
    (THIRD, greedy(guidance_scale=2.2, negative_prompt="abc", logprobs=1, prompt_logprobs=1, max_tokens=4)),
    (FOURTH, sampled(seed=4, logprobs=0, max_tokens=5)),
    (SECOND, SamplingParams(guidance_scale=1.4, structured_outputs=COLOURS, seed=5, logprobs=2, max_tokens=6)),
    (REPEATING, sampled(logits_processors=[by_output], repetition_penalty=1.3, seed=6, logprobs=1, max_tokens=5)),
    (FIRST, sampled(guidance_scale=0.5, logits_processors=[by_history], seed=7, logprobs=1, top_p=0.7, max_tokens=4)),
]

WIDE = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"
PARALLEL = "[(0,), (1,), (0, 0), (1, 0), (0, 0, 0), (1, 0, 0)]"


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter: the name of a directory of ``checkpoints``, a drafter's name, or one of these as a vLLM tree."""

    name: str
    tree: str | None = None
    sample: str | None = None  # draft_sample_method

    def build(self, draft):
        if self.tree is None:
            return draft if self.name == "draft" else getattr(checkpoints(), self.name, self.name)
        given = {"speculative_token_tree": self.tree, "draft_sample_method": self.sample}
        return {"model": str(getattr(checkpoints(), self.name)), **given}

    @property
    def reads_target(self):
        """Whether it drafts from the target's hidden states."""
        return self.name.startswith(("early_exit", "prophet", "linear_prophet"))


PLAIN, NGRAM, MODEL = Drafting("none"), Drafting("ngram"), Drafting("draft")
LIKELIEST, DRAWN = Drafting("draft", WIDE, "greedy"), Drafting("draft", WIDE, "probabilistic")
PATHS = Drafting("draft", PARALLEL, "probabilistic")
EXIT, PROPHET, LINEAR = Drafting("early_exit:exit_layer=1"), Drafting("prophet"), Drafting("linear_prophet")
PROPHET_TREE = Drafting("prophet", WIDE, "greedy")


@dataclass(frozen=True, slots=True)
class Case:
    """Requests that pass through one engine of fewer rows, and what drafts and verifies for them."""

    requests: str
    drafting: Drafting
    verifier: str

    @property
    def name(self):
        drafting = self.drafting
        tree = "" if drafting.tree is None else f" tree {drafting.sample}{' parallel' if drafting is PATHS else ''}"
        return f"{self.requests}, {drafting.name}{tree}, {self.verifier}"


REQUESTS = {
    "guided": GUIDED,
    "grammars": GRAMMARS,
    "callables": CALLABLES,
    "options": OPTIONS,
    "combined": COMBINED,
    "logprobs": LOGPROBS,
}
COUPLED = "coupled"
CHAINS = [(PLAIN, COUPLED), (NGRAM, COUPLED), (MODEL, COUPLED), (LIKELIEST, COUPLED), (DRAWN, COUPLED)]
FROM_STATES = [(EXIT, COUPLED), (PROPHET, COUPLED), (LINEAR, COUPLED), (PROPHET_TREE, COUPLED)]
OF_DISTRIBUTIONS = [
    (NGRAM, "rejection"),
    (MODEL, "rejection"),
    (MODEL, "block"),
    (DRAWN, "recursive"),
    (PATHS, "spectr"),
    (DRAWN, "traversal"),
]
COMBINATIONS = {
    "guided": [*CHAINS, *FROM_STATES, *OF_DISTRIBUTIONS, (MODEL, "match"), (MODEL, "recursive")],
    "grammars": [*CHAINS, *FROM_STATES, *OF_DISTRIBUTIONS, (EXIT, "rejection")],
    "callables": [(PLAIN, COUPLED), (MODEL, COUPLED), (DRAWN, COUPLED), (MODEL, "rejection"), (DRAWN, "traversal")],
    "options": [(PLAIN, COUPLED), (NGRAM, COUPLED), (MODEL, COUPLED), (EXIT, "block"), (DRAWN, "recursive")],
    "combined": [*CHAINS, (EXIT, COUPLED), *OF_DISTRIBUTIONS[1:]],
    "logprobs": [(PLAIN, COUPLED), (MODEL, COUPLED), (DRAWN, COUPLED), (MODEL, "rejection"), (PROPHET, COUPLED)],
}
CASES = {
    case.name: case
    for case in (
        Case(requests, drafting, verifier) for requests, pairs in COMBINATIONS.items() for drafting, verifier in pairs
    )
}


@cache
def models(eager):
    """Target and draft."""
    found = checkpoints()
    return tuple(load(path, device="cpu", enforce_eager=eager) for path in (found.target, found.draft))


def outputs(case, *, eager):
    """What the engine gives for ``case``, in JSON's types; log-probabilities as hexadecimal numbers."""
    target, draft = models(eager)
    requests = REQUESTS[case.requests]
    guided = any(params.guidance_scale != 1 for _, params in requests)
    from_states = guided and case.drafting.reads_target
    # A guided row's drafts from the target's states are not recorded. A free row's must not depend on them either, so
    # fewer steps are taken then than those after which a step may be plain to measure.
    num_rows = (len(requests) + 1) // 2 if from_states else 2
    engine = Engine(
        target,
        drafter=case.drafting.build(draft),
        verifier=case.verifier,
        num_draft_tokens=3,
        batch_size=num_rows,
        max_length=64,
        guidance=guided,
    )
    results = engine.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    return [
        _output(result, drafts=not from_states or requests[result.index][1].guidance_scale == 1) for result in results
    ]


def _output(result, *, drafts):
    """``drafts``: with what depends on the drafts. The tokens of a row that failed do."""
    output = {"failed": result.error is not None, "seed": result.seed}
    if drafts or result.error is None:
        tokens = result.token_ids if hasattr(result, "token_ids") else result.tokens
        output |= {
            "tokens": list(tokens),
            "text": result.text,
            "finish_reason": result.finish_reason,
            "stop_reason": result.stop_reason,
        }
    if drafts:
        pairs = zip(result.source, result.origin, strict=True)
        counts = result.stats.summary
        output |= {
            "source": [str(source) if origin is None else f"{source} by {origin}" for source, origin in pairs],
            "counts": [counts.steps, counts.emitted, list(counts.drafted), list(counts.accepted)],
            "no_draft": dict(sorted(result.stats.no_draft.items())),
        }
    if result.logprobs is not None:
        output["logprobs"] = [
            [one.raw.hex(), one.processed.hex(), _top(one.top_raw), _top(one.top_processed)] for one in result.logprobs
        ]
    if result.prompt_logprobs is not None:
        scored = result.prompt_logprobs
        output["prompt_logprobs"] = [
            [None if value is None else value.hex() for value in scored.logprobs],
            [None if top is None else _top(top) for top in scored.top],
        ]
    return output


def _top(pairs):
    return [[token, value.hex()] for token, value in pairs]


def _assert_close(found, recorded):
    """Lists of the same form whose hexadecimal numbers are nearly the same, and all else equal."""
    if isinstance(recorded, list):
        assert isinstance(found, list) and len(found) == len(recorded)
        for one, other in zip(found, recorded, strict=True):
            _assert_close(one, other)
    elif isinstance(recorded, str):
        values = float.fromhex(found), float.fromhex(recorded)
        assert math.isclose(*values, rel_tol=TOLERANCE, abs_tol=1e-3 * TOLERANCE), values
    else:
        assert found == recorded


@cache
def recorded():
    return json.loads(RECORDED.read_text())


def test_the_recorded_cases_are_these():
    assert list(recorded()) == list(CASES)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_the_recorded_ones(name, eager):
    found, wanted = outputs(CASES[name], eager=eager), recorded()[name]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        other = dict(other)
        for key in ("logprobs", "prompt_logprobs"):
            _assert_close(one.pop(key, None), other.pop(key, None))
        assert one == other


def record(path, *, eager=False):
    """Write to ``path`` what is given now, one line for each output."""
    lines = []
    for name, case in CASES.items():
        found = ",\n  ".join(json.dumps(output, separators=(",", ":")) for output in outputs(case, eager=eager))
        lines.append(f"{json.dumps(name)}: [\n  {found}\n]")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    if arguments[:1] != ["--record"] or len(arguments) > 2:
        sys.exit("usage: python -m tests.conformance.test_recorded_outputs --record [FILE]")
    record(Path(arguments[1]) if len(arguments) == 2 else RECORDED)
