"""Drafts with a multi-token-prediction module, from the target's last hidden states (2412.19437)."""

from typing import final

from paceline.core.tree import Draw
from paceline.draft_heads.mtp import MTPHead
from paceline.drafters.pair import PairDrafter
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM


@final
class MTPDrafter(PairDrafter):
    """Predicts the next token with one layer, from the target's last state and the token after it, then from its own.

    See PairDrafter for the arguments.
    """

    origins = ("mtp",)

    def __init__(
        self,
        *,
        head: MTPHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(head=head, lm=lm, draws=draws, shape=shape)
