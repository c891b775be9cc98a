"""Results as JSON objects, in the words of the Python interface. Prints nothing."""

import math

from paceline.api import Result
from paceline.core.logprobs import TokenLogprobs

DIGITS = 4  # of log-probabilities in files, whose last bits depend on which texts ran together


def result_object(result: Result) -> dict[str, object]:
    """Everything about one text, what its drafting did included."""
    stats = result.stats
    times = stats.times
    shown: dict[str, object] = {
        "sample": result.sample,
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "seed": result.seed,
        "prompt_tokens": result.prompt_tokens,
        "source": result.source,
        "origin": result.origin,
    }
    if result.logprobs is not None:
        shown["logprobs"] = [_chosen(chosen, None) for chosen in result.logprobs]
    if result.error is not None:
        shown["error"] = result.error
    shown["stats"] = {
        "steps": stats.steps,
        "emitted": stats.summary.emitted,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_rate": stats.acceptance_rate,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "per_position_acceptance": stats.per_position_acceptance,
        "no_draft": stats.no_draft,
        "seconds": {
            "total": times.total,
            "queue": times.queue,
            "prefill": times.prefill,
            "first_token": times.first_token,
            "draft": times.draft,
            "target": times.target,
            "verify": times.verify,
            "rest": times.rest,
        },
        "warning": stats.warning,
    }
    return shown


def sample_object(result: Result) -> dict[str, object]:
    """What of a text does not depend on how it was drafted or interrupted: it is the same in every run."""
    shown: dict[str, object] = {
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "seed": result.seed,
    }
    if result.logprobs is not None:
        shown["logprobs"] = [_chosen(chosen, DIGITS) for chosen in result.logprobs]
    return shown


def _chosen(chosen: TokenLogprobs, digits: int | None) -> dict[str, object]:
    return {
        "raw": _number(chosen.raw, digits),
        "processed": _number(chosen.processed, digits),
        "top_raw": [(token, _number(value, digits)) for token, value in chosen.top_raw],
        "top_processed": [(token, _number(value, digits)) for token, value in chosen.top_processed],
    }


def _number(value: float, digits: int | None) -> float | None:
    """JSON has no infinities: what cannot happen has null."""
    if not math.isfinite(value):
        return None
    return value if digits is None else round(value, digits)
