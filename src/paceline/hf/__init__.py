"""Drop-in for transformers: ``paceline.hf.generate`` in place of ``model.generate``."""

from paceline.hf.drop_in import SpeculativeOutput, generate

__all__ = ["SpeculativeOutput", "generate"]
