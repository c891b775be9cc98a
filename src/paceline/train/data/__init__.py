"""Training data: sources, tokenisation, packing, and batches in a deterministic order."""

from paceline.train.data.batches import PreparedData, make_batches
from paceline.train.data.config import DataConfig
from paceline.train.data.manifest import Manifest
from paceline.train.data.sources.standard_library import HELD_OUT, LibraryFile, standard_library

__all__ = ["HELD_OUT", "DataConfig", "LibraryFile", "Manifest", "PreparedData", "make_batches", "standard_library"]
