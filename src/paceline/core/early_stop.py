"""Ends chains while they are drafted, where the drafter's own distributions promise too little.

Whether a token is submitted depends on how peaked the distributions at its position and above are, never on the token
itself or a later one; so every lossless verifier stays exact (docs/controller.md has the proof). B = R rows, V
vocabulary.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.core.columns import Columns

LEVELS = 15  # from 1: how peaked a distribution is
BITS = 4  # of a token's level in a row's note
MOST_NOTED = 15  # tokens whose levels fit into a note
COLUMNS = ("least", "acceptance", "notes")


@dataclass(frozen=True, slots=True)
class StopRule:
    """When chains end early: before a token whose chance to be accepted is below ``least`` of its row.

    The chance is the product of ``acceptance`` of the levels of the token and of those above it. ``acceptance`` has
    LEVELS entries for each row, ``least`` one; 0 never ends a chain.
    """

    acceptance: tuple[tuple[float, ...], ...]
    least: tuple[float, ...]


def level_of(logits: Tensor) -> Tensor:
    """How peaked the softmax of ``logits`` [..., V] is: int64 levels from 1 to LEVELS.

    Level 8 begins where the likeliest token has a probability of a half; each further one where its odds have grown by
    a factor of the square root of two.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    rest = (logits - logits.amax(-1, keepdim=True)).exp().sum(-1) - 1  # of the odds against the likeliest
    return (8 - 2 * rest.clamp(min=0).log2()).floor().clamp(1, LEVELS).long()


def level_of_odds(logits: Tensor) -> Tensor:
    """The level int64 of a chance whose log odds are ``logits``, on the scale of ``level_of``."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (8 + 2 / math.log(2) * wide).floor().clamp(1, LEVELS).long()


def noted_levels(note: int, count: int) -> list[int]:
    """The levels of the first ``count`` tokens of a row's note; fewer where it has none."""
    found: list[int] = []
    while note and len(found) < count:
        found.append(note % (1 << BITS))
        note >>= BITS
    return found


@final
class EarlyStop:
    """The rule of the step, and what was noted while drafting.

    ``notes`` [R] int64 hold the levels of each row's draft, BITS for each token, the first one lowest; appending a
    step reports and clears them.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rule: StopRule | None = None
        self.least = torch.zeros(rows, device=device)  # [R] float32
        self.acceptance = torch.zeros(rows, LEVELS + 1, device=device)  # by level; the first is not used
        self.notes = torch.zeros(rows, dtype=torch.int64, device=device)
        self.columns = Columns(self.least, self.acceptance, self.notes)

    def plan(self, rule: StopRule | None) -> None:
        """End chains by ``rule`` from now on; None: never."""
        if rule is None or rule is self.rule or rule == self.rule:
            self.rule = rule
            return
        self.rule = rule
        self.least.copy_(torch.tensor(rule.least), non_blocking=True)
        self.acceptance[:, 1:].copy_(torch.tensor(rule.acceptance), non_blocking=True)

    def follow(
        self, chance: Tensor | None, logits: Tensor, depth: int, drafts: Tensor, confidence: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The chance [B] that the token at ``depth`` (from 0) is accepted, and whether to draft it [B] bool.

        ``chance`` is that of the token above (None: there is none); ``logits`` [B, V] are those it is chosen from. With
        ``confidence`` [B], the log odds that the drafter gives the token before it knows it, these are its level.
        Levels are noted of rows that otherwise draft it, ``drafts`` [B] bool.
        """
        level = level_of(logits) if confidence is None else level_of_odds(confidence)
        if depth < MOST_NOTED:
            self.notes.bitwise_or_(torch.where(drafts, level << BITS * depth, 0))
        here = self.acceptance.gather(1, level[:, None])[:, 0]
        chance = here if chance is None else chance * here
        return chance, chance >= self.least
