"""A corpus: the section ``data`` of a run's configuration, alone or in the whole file, and the vocabulary of a model.

Reads no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from paceline.models import hub
from paceline.models.directory import is_hub_id, read_config
from paceline.text.special_tokens import read_eos
from paceline.text.tokenizer import Tokenizer, load_tokenizer
from paceline.train.data.batches import PreparedData, make_batches, make_encoder
from paceline.train.data.config import DataConfig
from paceline.train.data.manifest import Split
from paceline.train.data.pair_encoder import PairModel, read_pair_model
from paceline.train.data.sources.feature_extraction import Chunk, chunk_documents
from paceline.train.data.sources.readers import open_reader
from paceline.train.data.store import default_cache, open_split
from paceline.train.data.tokenise import tokenise

DEFAULT_LENGTH = 512  # tokens of a row, by default
NUM_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The section ``data``, and the rows that the rest of the file configures."""

    data: DataConfig
    model: str | None  # of the target, where the file names a directory
    vocab_size: int | None  # of one from scratch
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What turns text into token ids."""

    tokenizer: Tokenizer | None
    size: int
    end_of_text: int | None
    pairs_for: PairModel | None = None  # the model, if it has an encoder


def read_corpus(
    config: Path | Mapping[str, object], *, length: int | None, byte_tokens: bool = False, cache: Path | None = None
) -> Corpus:
    """The configuration of a run, or its section ``data`` alone, from a YAML file or as values.

    Raises ValueError with every field that is wrong, and for a file that is no YAML mapping.
    """
    raw = _read_yaml(config) if isinstance(config, Path) else config
    whole = raw if "data" in raw else {"data": raw}
    section = _mapping(whole["data"], "data")
    if byte_tokens:
        section["tokenizer"] = "bytes"
    if cache is not None:
        section["cache"] = cache
    try:
        data = DataConfig.model_validate(section)
    except ValidationError as error:
        raise ValueError(f"{config if isinstance(config, Path) else 'options'}: {'; '.join(_wrong(error))}") from error
    target, batch = (_mapping(whole.get(name) or {}, name) for name in ("target", "batch"))
    model, own = target.get("path"), batch.get("length", DEFAULT_LENGTH)
    size = _mapping(target.get("config") or {}, "target.config").get("vocab_size")
    if not isinstance(own, int) or own < 1 or (length is not None and length < 1):
        raise ValueError(f"length {own if length is None else length}: give at least 1")
    return Corpus(
        data=data,
        model=model if isinstance(model, str) else None,
        vocab_size=size if isinstance(size, int) else None,
        length=length or own,
    )


def read_rows(corpus: Corpus, model: str | None) -> PreparedData:
    """All rows of ``corpus``, one a batch, in tokens of ``model``. Raises ValueError for what is wrong with either."""
    vocabulary = read_vocabulary(corpus, model)
    return make_batches(
        corpus.data,
        tokenizer=vocabulary.tokenizer,
        vocab_size=vocabulary.size,
        end_of_text=vocabulary.end_of_text,
        rows=1,
        length=corpus.length,
        seed=0,
        pairs_for=vocabulary.pairs_for,
    )


def read_chunks(corpus: Corpus, model: str, split: Split) -> list[Chunk]:
    """The documents of a split in chunks of at most ``corpus.length`` tokens of ``model``."""
    vocabulary, data = read_vocabulary(corpus, model), corpus.data
    encoder = make_encoder(
        data, tokenizer=vocabulary.tokenizer, vocab_size=vocabulary.size, end_of_text=vocabulary.end_of_text
    )
    cache = data.cache or default_cache()
    made = [tokenise(source, open_reader(source, encoder), encoder, data.validation, cache) for source in data.sources]
    stored = [found for one in made if (found := open_split(one.folder, split)) is not None]
    return chunk_documents(stored, length=corpus.length)


def read_vocabulary(corpus: Corpus, model: str | None) -> Vocabulary:
    """Of a model directory or Hub id, or of bytes. Raises ValueError where there is none."""
    name = model or corpus.model
    if name is None:
        if corpus.data.tokenizer == "bytes":
            return Vocabulary(tokenizer=None, size=corpus.vocab_size or NUM_BYTES, end_of_text=None)
        raise ValueError("no model: give --model DIR, whose tokenizer is used, or --bytes")
    return read_model_vocabulary(name, byte_tokens=corpus.data.tokenizer == "bytes")


def read_model_vocabulary(name: str, *, byte_tokens: bool = False) -> Vocabulary:
    """Of a model directory or Hub id; with ``byte_tokens`` its size alone."""
    folder = hub.fetch(name, None) if is_hub_id(name) else Path(name)
    raw, eos = read_config(folder), read_eos(folder)
    size = raw.get("vocab_size")
    if not isinstance(size, int):
        raise ValueError(f"{folder / 'config.json'}: vocab_size={size!r}; it wants a number")
    tokenizer = None if byte_tokens else load_tokenizer(folder)
    return Vocabulary(
        tokenizer=tokenizer,
        size=size,
        end_of_text=eos[0] if eos else None,
        pairs_for=read_pair_model(folder, raw),
    )


def _read_yaml(path: Path) -> dict[str, object]:
    try:
        return _mapping(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8; give a YAML file") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a YAML file") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML ({' '.join(str(error).split())})") from error


def _mapping(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: a {type(value).__name__}; give a mapping of names to values")
    return dict(cast(Mapping[str, object], value))


def _wrong(error: ValidationError) -> list[str]:
    """Each invalid field: its name, what is expected, what was given."""
    found = []
    for one in error.errors():
        name = ".".join(["data", *(str(part) for part in one["loc"])])
        given = (
            "" if one["type"] == "missing" or isinstance(one["input"], Mapping) else f" ({one['input']!r} was given)"
        )
        found.append(f"{name}: {one['msg']}{given}")
    return found
