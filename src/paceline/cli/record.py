"""Results as JSON objects, with the names of the Python interface, or with former ones that files already have."""

import math

from paceline.api import Result
from paceline.core.logprobs import TokenLogprobs
from paceline.core.stats import StageSummary

SAMPLE = {  # of Result
    "text": "text",
    "tokens": "token_ids",
    "finish_reason": "finish_reason",
    "stop_reason": "stop_reason",
    "seed": "seed",
}
WHOLE = ("sample", "prompt_tokens", "source", "origin")
DRAFTING = (
    "drafted",
    "accepted",
    "acceptance_rate",
    "mean_acceptance_length",
    "per_position_acceptance",
    "no_draft",
)
TIMES = ("total", "queue", "prefill", "first_token", "draft", "score", "decide", "rest")  # of Times
FORMER_TIMES = {"target": "score", "verify": "decide"}  # deprecated keys, with the values of the new ones
DIGITS = 4  # of log-probabilities in files, whose last bits depend on the batch


def result_object(result: Result) -> dict[str, object]:
    """Everything about one output, with its drafting statistics."""
    stats = result.stats
    shown: dict[str, object] = {**_sample(result), **{name: getattr(result, name) for name in WHOLE}}
    if result.logprobs is not None:
        shown["logprobs"] = [_chosen(chosen, None) for chosen in result.logprobs]
    if result.error is not None:
        shown["error"] = result.error
    seconds = {name: getattr(stats.times, name) for name in TIMES}
    shown["stats"] = {
        "steps": stats.steps,
        "emitted": stats.summary.emitted,
        **{name: getattr(stats, name) for name in DRAFTING},
        **({"stages": [_stage(stage) for stage in stats.stages]} if stats.stages else {}),
        "seconds": {**seconds, **{former: seconds[name] for former, name in FORMER_TIMES.items()}},
        "warning": stats.warning,
    }
    return shown


def _stage(stage: StageSummary) -> dict[str, object]:
    counts = stage.summary
    return {
        "name": stage.name,
        "drafts_for": "target" if stage.drafts_for_target else "draft model",
        "steps": counts.steps,
        "emitted": counts.emitted,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "acceptance_rate": counts.acceptance_rate,
        "mean_acceptance_length": counts.mean_acceptance_length,
    }


def sample_object(result: Result) -> dict[str, object]:
    """The fields that do not depend on drafting or interruptions: the same in every run."""
    shown = _sample(result)
    if result.logprobs is not None:
        shown["logprobs"] = [_chosen(chosen, DIGITS) for chosen in result.logprobs]
    return shown


def _sample(result: Result) -> dict[str, object]:
    return {key: getattr(result, name) for key, name in SAMPLE.items()}


def _chosen(chosen: TokenLogprobs, digits: int | None) -> dict[str, object]:
    return {
        "raw": _number(chosen.raw, digits),
        "processed": _number(chosen.processed, digits),
        "top_raw": [(token, _number(value, digits)) for token, value in chosen.top_raw],
        "top_processed": [(token, _number(value, digits)) for token, value in chosen.top_processed],
    }


def _number(value: float, digits: int | None) -> float | None:
    """JSON has no infinities: impossible tokens have null."""
    if not math.isfinite(value):
        return None
    return value if digits is None else round(value, digits)
