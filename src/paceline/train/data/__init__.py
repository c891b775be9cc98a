"""What a run reads: the corpus that is always there, and any other as batches in a deterministic order."""

from paceline.train.data.batches import Prepared, make_batches
from paceline.train.data.config import DataConfig
from paceline.train.data.corpus import END_OF_TEXT, HELD_OUT, Document, encode, standard_library, train_tokenizer
from paceline.train.data.crops import Crops, Stages
from paceline.train.data.manifest import Manifest

__all__ = [
    "END_OF_TEXT",
    "HELD_OUT",
    "Crops",
    "DataConfig",
    "Document",
    "Manifest",
    "Prepared",
    "Stages",
    "encode",
    "make_batches",
    "standard_library",
    "train_tokenizer",
]
