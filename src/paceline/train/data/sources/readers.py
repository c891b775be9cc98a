"""Opens the reader of a source."""

from paceline.train.data.config import (
    BytesSource,
    ChatSource,
    DatasetsSource,
    FeaturesSource,
    JsonlSource,
    LibrarySource,
    RowsSource,
    Source,
    TextSource,
    TokensSource,
)
from paceline.train.data.encoders import ByteEncoder, Encoder
from paceline.train.data.sources.arrays import ByteRanges, TokenFiles
from paceline.train.data.sources.documents import Reader
from paceline.train.data.sources.features import FeatureFolder
from paceline.train.data.sources.hub_datasets import HubDataset
from paceline.train.data.sources.standard_library import StandardLibrary
from paceline.train.data.sources.text_files import JsonLines, TextFiles, parse_chat, parse_row, parse_text


def open_reader(source: Source, encoder: Encoder) -> Reader:
    """The reader of ``source``. Raises ValueError if there is nothing to read."""
    match source:
        case TextSource(paths=paths):
            return TextFiles(paths=paths)
        case JsonlSource(paths=paths, field=field):
            return JsonLines(paths=paths, parse=parse_text, field=field)
        case ChatSource(paths=paths, field=field):
            return JsonLines(paths=paths, parse=parse_chat, field=field)
        case RowsSource(paths=paths):
            return JsonLines(paths=paths, parse=parse_row, skip_field="left_out")
        case TokensSource(paths=paths, dtype=dtype):
            return TokenFiles(paths=paths, dtype=dtype, end_of_text=encoder.end_of_text)
        case BytesSource(path=path, train=train, validation=validation, test=test):
            if not isinstance(encoder, ByteEncoder):
                raise ValueError(f"data: {path}: a source of bytes wants tokenizer: bytes; or take it as text")
            return ByteRanges(path=path, train=train, validation=validation, test=test)
        case LibrarySource():
            return StandardLibrary()
        case DatasetsSource():
            return HubDataset(source)
        case FeaturesSource(path=path):
            return FeatureFolder(path=path)
