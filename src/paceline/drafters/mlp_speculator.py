"""Drafts with an MLP speculator, whose state follows from the target's hidden state and the tokens (2404.19124)."""

from typing import final

from paceline.drafters.feature import FeatureDrafter


@final
class MLPSpeculatorDrafter(FeatureDrafter):
    """Carries a state along the draft, from the target's last hidden state and each drafted token, without attention.

    In a tree every node has a state of its own. ``lm``, ``shape`` and ``draws`` are as in FeatureDrafter.
    """

    origins = ("mlp_speculator",)
