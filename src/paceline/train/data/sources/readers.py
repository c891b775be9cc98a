"""Opens the reader of a source."""

from collections.abc import Mapping

from paceline.train.data.config import Source
from paceline.train.data.encoders import Encoder
from paceline.train.data.sources.arrays import ByteRanges, TokenFiles
from paceline.train.data.sources.documents import Reader
from paceline.train.data.sources.features import FeatureFolder
from paceline.train.data.sources.hub_datasets import HubDataset
from paceline.train.data.sources.pairs import PairLines, SoundLines
from paceline.train.data.sources.standard_library import StandardLibrary
from paceline.train.data.sources.text_files import JsonLines, TextFiles

READERS: Mapping[str, type[Reader]] = {
    "text": TextFiles,
    "jsonl": JsonLines,
    "chat": JsonLines,
    "rows": JsonLines,
    "tokens": TokenFiles,
    "bytes": ByteRanges,
    "standard_library": StandardLibrary,
    "datasets": HubDataset,
    "features": FeatureFolder,
    "pairs": PairLines,
    "sounds": SoundLines,
}


def open_reader(source: Source, encoder: Encoder) -> Reader:
    """The reader of ``source``. Raises ValueError if there is nothing to read."""
    return READERS[source.kind](source, encoder)
