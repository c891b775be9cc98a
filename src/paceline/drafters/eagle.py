"""Drafts with an EAGLE head, from the target's last hidden states (2401.15077, 2406.16858)."""

from typing import final

from paceline.core.tree import Draw
from paceline.draft_heads.eagle import EagleHead
from paceline.drafters.pair import PairDrafter
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM


@final
class EagleDrafter(PairDrafter):
    """Predicts the target's next feature with one layer, from its last one and the token after it.

    See PairDrafter for the arguments.
    """

    origins = ("eagle",)

    def __init__(
        self,
        *,
        head: EagleHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(head=head, lm=lm, draws=draws, shape=shape)
