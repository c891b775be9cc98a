"""The Python interface: load a checkpoint, generate from it with any drafter."""

from paceline.api.build import build_drafter, build_verifier
from paceline.api.embedded import embedded_pair
from paceline.api.generate import Generation, generate, total
from paceline.api.loading import DTYPES, Loaded, load
from paceline.api.results import Piece, Result, Source

__all__ = [
    "DTYPES",
    "Generation",
    "Loaded",
    "Piece",
    "Result",
    "Source",
    "build_drafter",
    "build_verifier",
    "embedded_pair",
    "generate",
    "load",
    "total",
]
