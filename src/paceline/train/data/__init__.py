"""Training data: sources, tokenisation, packing, and batches in a deterministic order."""

from paceline.train.data.batches import PreparedData, make_batches
from paceline.train.data.config import DataConfig
from paceline.train.data.crops import Crops, Stages
from paceline.train.data.manifest import Manifest
from paceline.train.data.sources.standard_library import (
    END_OF_TEXT,
    HELD_OUT,
    LibraryFile,
    encode,
    standard_library,
    train_tokenizer,
)

__all__ = [
    "END_OF_TEXT",
    "HELD_OUT",
    "Crops",
    "DataConfig",
    "LibraryFile",
    "Manifest",
    "PreparedData",
    "Stages",
    "encode",
    "make_batches",
    "standard_library",
    "train_tokenizer",
]
