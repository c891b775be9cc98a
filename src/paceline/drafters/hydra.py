"""Drafts with Hydra heads, which read the target's last hidden state and the drafted tokens (2402.05109)."""

from typing import final

from paceline.drafters.feature import FeatureDrafter


@final
class HydraDrafter(FeatureDrafter):
    """Predicts every depth from the target's last hidden state and the embeddings of the tokens drafted before it.

    In a tree every node reads its own path. ``lm``, ``shape`` and ``draws`` are as in FeatureDrafter.
    """

    origins = ("hydra",)
