"""The reader of each kind of source. Reads nothing itself."""

from paceline.train.data.arrays import BytesFile, StandardLibrary, TokenFiles
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
from paceline.train.data.documents import JsonlChats, JsonlRows, JsonlTexts, Reader, TextFiles
from paceline.train.data.encoders import Bytes, Encoder
from paceline.train.data.features import FeatureFolder
from paceline.train.data.hub_datasets import DataSet


def open_reader(source: Source, encoder: Encoder) -> Reader:
    """What reads ``source``. Raises ValueError where there is nothing to read."""
    match source:
        case TextSource(paths=paths):
            return TextFiles(paths=paths)
        case JsonlSource(paths=paths, field=field):
            return JsonlTexts(paths=paths, field=field)
        case ChatSource(paths=paths, field=field):
            return JsonlChats(paths=paths, field=field)
        case RowsSource(paths=paths):
            return JsonlRows(paths=paths)
        case TokensSource(paths=paths, dtype=dtype):
            return TokenFiles(paths=paths, dtype=dtype, end_of_text=encoder.end_of_text)
        case BytesSource(path=path, train=train, validation=validation, test=test):
            if not isinstance(encoder, Bytes):
                raise ValueError(f"data: {path}: a source of bytes wants tokenizer: bytes; or take it as text")
            return BytesFile(path=path, train=train, validation=validation, test=test)
        case LibrarySource():
            return StandardLibrary()
        case DatasetsSource():
            return DataSet(
                name=source.name,
                files=source.files,
                subset=source.subset,
                part=source.part,
                holds=source.holds,
                field=source.field,
            )
        case FeaturesSource(path=path):
            return FeatureFolder(path=path)
