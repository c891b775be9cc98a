"""What generation gives back, on the host: pieces as they come, results at the end. Decodes nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from operator import add
from typing import Literal, TypeAlias

from paceline.api.score import PromptScore
from paceline.core.logprobs import TokenLogprobs
from paceline.core.stats import Summary
from paceline.core.tree import NoDraft
from paceline.engine.jobs import Closing, Gain, Times
from paceline.engine.watch import Speed

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]

MEASURED = "plain step taken to measure"
REASONS: dict[NoDraft, str] = {
    NoDraft.OFF: "turned off",
    NoDraft.CAPPED: "the request's own limit is 0",
    NoDraft.LIMIT: "one token left to max_tokens",
    NoDraft.NO_MATCH: "no n-gram match",
    NoDraft.CONTEXT: "draft context full",
    NoDraft.DECLINED: "the drafter declined",
    NoDraft.FAILED: "the drafter failed",
}


class Source(StrEnum):
    """Who chose a token."""

    DRAFTED = "drafted"  # proposed by the drafter and kept
    CORRECTED = "corrected"  # the target's own, in place of a refused draft token
    BONUS = "bonus"  # the target's own, after a draft that was kept whole
    PLAIN = "plain"  # the target's own, in a step that drafted nothing for the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token as it was committed, with the text that it completes.

    Text that could be the beginning of a stop string, or of a character, comes with a later piece.
    """

    index: int  # which prompt of the call
    sample: int  # which of its n samples
    token: int
    text: str
    source: Source
    origin: str | None  # the drafter that proposed it; None for the target's own
    logprob: TokenLogprobs | None  # where the parameters ask for it
    finish_reason: FinishReason | None  # on the last piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a request cost and what drafting did for it.

    Counts are per request, after clipping at stop tokens, stop strings and limits. Times are in seconds of the clock on
    the wall; the steps of a batch count in full for each of its rows.
    """

    summary: Summary
    times: Times
    no_draft: dict[str, int] = field(default_factory=dict[str, int])  # steps without a draft, by reason
    speed: Speed | None = None  # of the whole batch, drafted and plain; None where it was not measured
    lossless: bool = True  # whether the verifier keeps the target's distribution

    @property
    def steps(self) -> int:
        """Target forwards that the request took part in."""
        return self.summary.steps

    @property
    def drafted(self) -> list[int]:
        """Steps that proposed a token at depth i + 1."""
        return self.summary.drafted

    @property
    def accepted(self) -> list[int]:
        """Steps that kept it."""
        return self.summary.accepted

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step: accepted ones and the correction or bonus."""
        return self.summary.mean_acceptance_length

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.summary.acceptance_rate

    @property
    def per_position_acceptance(self) -> list[float]:
        """Accepted over drafted tokens, by depth."""
        return self.summary.per_position_acceptance

    @property
    def warning(self) -> str | None:
        """What a user should know: that drafting was slower than not drafting."""
        return None if self.speed is None else self.speed.warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The continuation of one prompt, which is not repeated in it."""

    index: int  # which prompt of the call
    sample: int  # which of its n samples
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]  # the token that stopped it included
    text: str | None  # None without a tokenizer; without the stop string or stop token unless asked for
    source: tuple[Source, ...]  # who chose each token
    origin: tuple[str | None, ...]  # the drafter that proposed it; None for the target's own
    logprobs: tuple[TokenLogprobs, ...] | None  # of each token, raw and processed, where asked
    prompt_logprobs: PromptScore | None  # of the prompt's own tokens, raw, where asked
    finish_reason: FinishReason
    stop_reason: int | str | None  # the stop string, or the id of stop_token_ids, that ended it
    seed: int  # of its noise: the same seed gives the same tokens
    stats: Statistics
    error: str | None = None  # why it was cancelled, if it failed


def sources_of(gain: Gain) -> list[Source]:
    """Who chose each of the tokens that a request got in a step."""
    if gain.num_drafted == 0:
        last = Source.PLAIN
    else:
        last = Source.BONUS if gain.bonus else Source.CORRECTED
    return [Source.DRAFTED] * gain.num_accepted + [last] * (len(gain.tokens) - gain.num_accepted)


def reasons_of(closing: Closing) -> dict[str, int]:
    """Steps without a draft in words, by count."""
    counts = {REASONS[reason]: count for reason, count in closing.no_draft.items()}
    if closing.num_measured:
        counts[REASONS[NoDraft.OFF]] -= closing.num_measured
        counts[MEASURED] = closing.num_measured
    return {reason: count for reason, count in counts.items() if count}


def total(results: Iterable[Result]) -> Summary:
    """The counts of all ``results`` together."""
    return reduce(add, (result.stats.summary for result in results))
