"""Drafts with an EAGLE-3 head, from fused hidden states of the target (2503.01840)."""

from typing import final

from paceline.core.tree import Draw
from paceline.draft_heads.eagle3 import Eagle3Head
from paceline.drafters.pair import PairDrafter
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM


@final
class Eagle3Drafter(PairDrafter):
    """Predicts the next token with one layer, from fused hidden states of several layers of the target.

    See PairDrafter for the arguments.
    """

    origins = ("eagle3",)

    def __init__(
        self,
        *,
        head: Eagle3Head,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(head=head, lm=lm, draws=draws, shape=shape)
