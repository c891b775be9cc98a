"""What generation gives back, on the host: pieces as they come, results at the end. Decodes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from paceline.core.batch import Report
from paceline.core.stats import Summary

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]


class Source(StrEnum):
    """Who chose a token."""

    DRAFTED = "drafted"  # proposed by the drafter and kept
    CORRECTED = "corrected"  # the target's own, in place of a refused draft token
    BONUS = "bonus"  # the target's own, after a draft that was kept whole
    PLAIN = "plain"  # the target's own, in a step that drafted nothing for the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token as it was committed, with the text that it completes."""

    row: int  # which prompt
    token: int
    text: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The continuation of one prompt, which is not repeated in it."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]  # the end-of-text token included, if one came
    text: str | None  # None without a tokenizer
    sources: tuple[Source, ...]  # of each token
    finish_reason: FinishReason
    stats: Summary


def sources_of(report: Report, row: int) -> Sequence[Source]:
    """Who chose each of the tokens that ``row`` gained in a step."""
    own = report.num[row] - report.accepted[row]
    if report.drafted[row] == 0:
        last = Source.PLAIN
    else:
        last = Source.BONUS if report.bonus[row] else Source.CORRECTED
    return [Source.DRAFTED] * report.accepted[row] + [last] * own
