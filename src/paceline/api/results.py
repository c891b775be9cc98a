"""What generation returns: a ``Piece`` per token while streaming, a ``Result`` per output at the end."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import add
from typing import Literal, TypeAlias

from paceline.api.score import PromptScore
from paceline.api.steps import Step
from paceline.core.logprobs import TokenLogprobs
from paceline.core.stats import Summary
from paceline.engine.outputs import RequestStats, StepOutput

Statistics = RequestStats  # deprecated name
FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]


class Source(StrEnum):
    """Where a token comes from."""

    DRAFTED = "drafted"  # proposed by the drafter and accepted
    CORRECTED = "corrected"  # the target's own, in place of a rejected draft token
    BONUS = "bonus"  # the target's own, after a draft that was accepted whole
    PLAIN = "plain"  # the target's own, in a step without a draft for the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token, returned when it is committed, with the text that it completes.

    Text that may be the beginning of a stop string, or of a character, comes with a later piece.
    """

    index: int  # which prompt of the call
    sample: int  # which of its n samples
    token: int
    text: str
    source: Source
    origin: str | None  # the drafter that proposed it; None for the target's own
    logprob: TokenLogprobs | None  # if requested
    finish_reason: FinishReason | None  # on the last piece
    rejected: str = ""  # of a correction, if asked for: the text that the draft proposed from here on
    step: Step | None = None  # of the last token of a step, if asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One output: the tokens generated after a prompt, without the prompt."""

    index: int  # which prompt of the call
    sample: int  # which of its n samples
    prompt_tokens: tuple[int, ...]
    token_ids: tuple[int, ...]  # the token that stopped it included
    text: str | None  # None without a tokenizer; without the stop string or stop token unless asked for
    source: tuple[Source, ...]  # where each token comes from
    origin: tuple[str | None, ...]  # the drafter that proposed it; None for the target's own
    logprobs: tuple[TokenLogprobs, ...] | None  # of each token, raw and processed, if requested
    prompt_logprobs: PromptScore | None  # of the prompt's tokens, raw, if requested
    finish_reason: FinishReason
    stop_reason: int | str | None  # the stop string, or the id of stop_token_ids, that ended it
    seed: int  # of the noise: the same seed gives the same tokens
    stats: RequestStats
    error: str | None = None  # what ended it, where finish_reason is "error"

    @property
    def tokens(self) -> tuple[int, ...]:
        """The same as ``token_ids``. Deprecated."""
        return self.token_ids


def sources_of(output: StepOutput) -> list[Source]:
    """Where each token that a request got in a step comes from."""
    if output.num_drafted == 0:
        last = Source.PLAIN
    else:
        last = Source.BONUS if output.bonus else Source.CORRECTED
    own = len(output.token_ids) - output.num_accepted
    return [Source.DRAFTED] * output.num_accepted + [last] * own


def total(results: Iterable[Result]) -> Summary:
    """The summed counts of all ``results``."""
    return reduce(add, (result.stats.summary for result in results))
