"""The JSON of answers: texts, log-probabilities, usage, as OpenAI's clients and vLLM's read them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from paceline.api.results import Piece, Result, total
from paceline.api.score import PromptScore
from paceline.core.logprobs import TokenLogprobs
from paceline.text.tokenizer import Tokenizer

REASONS = {"stop": "stop", "length": "length", "cancelled": "abort"}


class Scored(Protocol):
    """A token's log-probability, and the likeliest tokens."""

    @property
    def raw(self) -> float: ...

    @property
    def top_raw(self) -> Sequence[tuple[int, float]]: ...


def spelled(tokenizer: Tokenizer, token: int, *, as_id: bool = False) -> str:
    """The text of one token, special ones by their names; or its number."""
    return f"token_id:{token}" if as_id else tokenizer.decode([token], skip_special=False)


def usage_of(num_prompt: int, num_output: int) -> dict[str, int]:
    """Tokens that were read and written."""
    return {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}


def usage(results: Iterable[Result]) -> dict[str, int]:
    """Those of a request: a prompt counts once, however many outputs it has."""
    results = list(results)
    prompts = sum(len(one.prompt_tokens) for one in results if one.sample == 0)
    return usage_of(prompts, sum(len(one.token_ids) for one in results))


def metrics(results: Sequence[Result], *, num_draft_tokens: int) -> dict[str, object] | None:
    """Acceptance and times of a request of one output, under vLLM's names; None for several outputs."""
    if len(results) != 1:
        return None
    (result,) = results
    summary, times = total(results), result.stats.times
    accepted, drafted = sum(summary.accepted), sum(summary.drafted)
    # A step that accepted d draft tokens accepted those of the depths 1 to d.
    reached = [summary.steps, *summary.accepted, 0]
    histogram = [here - below for here, below in pairwise(reached)]
    speculative = {
        "mean_acceptance_length": summary.mean_acceptance_length,
        "draft_acceptance_rate": summary.acceptance_rate,
        "acceptance_histogram": histogram[: num_draft_tokens + 1],
        "num_spec_steps": summary.steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": num_draft_tokens,
        "per_step_accepted": None,
        "per_step_drafted": None,
    }
    first, rate, gap = times.first_token, None, None
    after = 0.0 if first is None else times.total - first
    if after and len(result.token_ids) > 1:
        gap = 1000 * after / (len(result.token_ids) - 1)
        rate = len(result.token_ids) / (times.total - times.queue)
    return {
        "time_to_first_token_ms": None if first is None else 1000 * first,
        "generation_time_ms": 1000 * after,
        "queue_time_ms": 1000 * times.queue,
        "mean_itl_ms": gap,
        "tokens_per_second": rate,
        "speculative_decoding": speculative,
    }


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[Scored | None], *, as_ids: bool = False
) -> dict[str, object]:
    """``logprobs`` of a completion; None for a token with nothing before it."""
    offset = 0
    texts, offsets, chosen, top = list[str](), list[int](), list[float | None](), list[dict[str, float] | None]()
    for token, found in zip(tokens, logprobs, strict=True):
        text = spelled(tokenizer, token, as_id=as_ids)
        texts.append(text)
        offsets.append(offset)
        offset += len(text)
        chosen.append(None if found is None else found.raw)
        # The token's own comes last, so that of two with one spelling it is the one that is kept.
        likeliest = () if found is None else reversed(found.top_raw)
        named = {spelled(tokenizer, one, as_id=as_ids): value for one, value in likeliest}
        top.append(None if found is None else {**named, text: found.raw})
    return {"text_offset": offsets, "token_logprobs": chosen, "tokens": texts, "top_logprobs": top}


def chat_logprobs(
    tokenizer: Tokenizer, pieces: Sequence[tuple[int, TokenLogprobs]], *, as_ids: bool = False
) -> dict[str, object]:
    """``logprobs`` of a chat's answer."""

    def entry(token: int, value: float) -> dict[str, object]:
        text = spelled(tokenizer, token)
        shown = spelled(tokenizer, token, as_id=as_ids)
        return {"token": shown, "logprob": max(value, -9999.0), "bytes": list(text.encode())}

    return {
        "content": [
            {**entry(token, found.raw), "top_logprobs": [entry(one, value) for one, value in found.top_raw]}
            for token, found in pieces
        ]
    }


def prompt_logprobs(tokenizer: Tokenizer, score: PromptScore, *, most: int) -> list[dict[str, object] | None]:
    """Those of a prompt's tokens and of the ``most`` likeliest, as vLLM gives them. The rank of a token that is not
    among the likeliest is None.
    """
    found: list[dict[str, object] | None] = []
    for token, value, top in zip(score.tokens, score.logprobs, score.top, strict=True):
        if value is None:
            found.append(None)
            continue
        ranked = {one: (likely, rank) for rank, (one, likely) in enumerate((top or ())[:most], start=1)}
        entries = {token: (value, ranked.get(token, (value, None))[1])} | ranked
        found.append(
            {
                str(one): {
                    "logprob": max(logprob, -9999.0),
                    "rank": rank,
                    "decoded_token": spelled(tokenizer, one),
                }
                for one, (logprob, rank) in entries.items()
            }
        )
    return found


def reason_of(found: Piece | Result) -> str | None:
    """Why an output ended, in OpenAI's words; None while it goes on."""
    return None if found.finish_reason is None else REASONS.get(found.finish_reason, "error")
