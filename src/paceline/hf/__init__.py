"""Drop-in for transformers: ``paceline.hf.generate`` in place of ``model.generate``, and ``patch`` to put it there."""

import paceline.models.adapter  # noqa: F401  before transformers imports torchao with its warnings
from paceline.hf.drop_in import SpeculativeOutput, generate
from paceline.hf.patching import patch, unpatch

__all__ = ["SpeculativeOutput", "generate", "patch", "unpatch"]
