"""Drop-in for transformers: ``paceline.hf.generate`` in place of ``model.generate``, and ``patch`` to put it there."""

from paceline.hf.drop_in import SpeculativeOutput, generate
from paceline.hf.patching import patch, unpatch

__all__ = ["SpeculativeOutput", "generate", "patch", "unpatch"]
