"""Drafts with Medusa heads, which predict every depth from the target's last hidden state alone (2401.10774)."""

from typing import final

from paceline.drafters.feature import FeatureDrafter


@final
class MedusaDrafter(FeatureDrafter):
    """Predicts every depth from the target's last hidden state, independently of the tokens drafted before it.

    All nodes of a depth have the same logits, so a tree costs no more matrix products than a chain. ``lm``, ``shape``
    and ``draws`` are as in FeatureDrafter.
    """

    origins = ("medusa",)
