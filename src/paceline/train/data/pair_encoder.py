"""Tokenisation of pairs for an encoder-decoder: what its encoder reads, and the output behind its start tokens.

N tokens of a text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from paceline.models import hub
from paceline.models.directory import is_hub_id, read_config
from paceline.models.loading import configure
from paceline.models.native.config import DecoderConfig
from paceline.speech.checkpoint import FILE as SPEECH_FILE
from paceline.speech.features import FILES as FEATURE_FILES
from paceline.text.special_tokens import read_eos, read_start
from paceline.text.tokenizer import Tokenizer
from paceline.train.data.config import DataConfig
from paceline.train.data.encoders import Encoder, Message, TokenizerEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class PairModel:
    """An encoder-decoder, as far as its training data depend on it."""

    folder: Path
    raw: Mapping[str, object]  # config.json
    start: tuple[int, ...]  # what an output begins after
    end: tuple[int, ...]  # any of which ends it
    max_source: int  # states of its encoder at most
    reads_sound: bool
    min_source: int = 1
    source_vocab: int | None = None  # of what its encoder reads; None: the output's


def read_pair_model(
    folder: Path | None, raw: Mapping[str, object], config: DecoderConfig | None = None
) -> PairModel | None:
    """The model in ``folder`` (None: one from scratch), whose config.json is ``raw``; None for one without an encoder.

    ``config`` (None: read from ``raw``) is the decoder's. Raises ModelError for an encoder-decoder that is not native,
    and ValueError for one that names no start token.
    """
    if config is None:
        if not raw.get("is_encoder_decoder"):
            return None
        config = configure(dict(raw), folder or "a model from scratch")
    if config.cross is None:
        return None
    found = read_special_tokens(raw) if folder is None else (read_start(folder), read_eos(folder))
    folder = folder or Path("a model from scratch")
    start, end = found
    if not start:
        raise ValueError(f"{folder} names no decoder_start_token_id, with which outputs begin: put it in config.json")
    features = None if config.encoder is None else config.encoder.num_features
    return PairModel(
        folder=folder,
        raw=raw,
        start=start,
        end=end,
        max_source=config.cross.max_source,
        reads_sound=features is not None,
        min_source=0 if config.cross.null else 1,
        source_vocab=None if config.encoder is None else config.encoder.vocab_size,
    )


def read_special_tokens(raw: Mapping[str, object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that outputs begin with, and those that end them, by a config.json that is in no directory."""
    values = (raw.get(name) for name in ("decoder_start_token_id", "eos_token_id"))
    start, end = ((value,) if isinstance(value, int) else () for value in values)
    return start, end


def find_pair_model(name: str) -> PairModel | None:
    """The same of a model directory or Hub id."""
    folder = hub.fetch(name, None) if is_hub_id(name) else Path(name)
    return read_pair_model(folder, read_config(folder))


@final
class PairEncoder(Encoder):
    """The target's tokenizer, for both sides of pairs; for sources alone where outputs have other tokens."""

    def __init__(
        self, model: PairModel, *, tokenizer: Tokenizer | None, vocab_size: int, end_of_text: int | None
    ) -> None:
        other = model.source_vocab
        self._texts = TokenizerEncoder(
            tokenizer=tokenizer,
            vocab_size=vocab_size if other is None else other,
            end_of_text=end_of_text if other is None else None,
        )
        super().__init__(vocab_size=vocab_size, end_of_text=end_of_text, source_vocab=other)
        self.model, self.tokenizer = model, tokenizer

    @property
    def fingerprint(self) -> str:
        parts = [self._texts.fingerprint, *map(str, self.model.start)]
        if self.model.source_vocab is not None:
            parts.append(f"of {self.model.source_vocab}")
        if self.model.reads_sound:
            paths = [self.model.folder / name for name in (SPEECH_FILE, *FEATURE_FILES)]
            parts += [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths if path.is_file()]
        return f"pairs/{'/'.join(parts)}"

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As the encoder reads them."""
        return self._texts.encode_many(texts)

    def outputs(self, texts: Sequence[str]) -> list[np.ndarray]:
        """What the decoder says, from behind the start tokens to the end-of-text token.

        Of the special tokens that the tokenizer puts before a text only a beginning of text is said, unless it is the
        last start token: others are languages, which the start tokens have. A transcript begins with a space.
        """
        if not texts:
            return []
        if self.model.source_vocab is not None:
            raise ValueError(
                f"data: outputs of {self.model.folder} are no text; give their token ids, start and end included, as "
                "input_ids"
            )
        if self.model.reads_sound:
            texts = [f" {text.strip()}" for text in texts]
        whole = self._texts.encode_many(texts)
        assert self.tokenizer is not None
        begin, end = self.tokenizer.inner.bos_token_id, self.end_of_text
        found: list[np.ndarray] = []
        for plain, special in zip(self.tokenizer.encode_many(texts, special=False), whole, strict=True):
            says_begin = begin is not None and special[:1].tolist() == [begin] and self.model.start[-1] != begin
            tokens = [begin] * says_begin + plain + ([] if end is None else [end])
            found.append(np.asarray(tokens, dtype=np.int64))
        return found

    def chat(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
        """Raises ValueError: an encoder reads no chats."""
        raise ValueError("an encoder-decoder reads no chats; give pairs")


def make_pair_encoder(
    config: DataConfig, model: PairModel, *, tokenizer: Tokenizer | None, vocab_size: int
) -> PairEncoder:
    """The encoder of the section, whose sources are pairs for ``model``. Raises ValueError for others."""
    if not config.is_paired:
        kinds = ", ".join(sorted({source.kind for source in config.sources}))
        wanted = "sounds" if model.reads_sound else "pairs"
        raise ValueError(
            f"data: sources of kind {kinds}, and {model.folder} is an encoder-decoder, which reads pairs; give sources "
            f"of kind {wanted}"
        )
    end = config.end_of_text if config.end_of_text is not None else next(iter(model.end), None)
    return PairEncoder(model, tokenizer=tokenizer, vocab_size=vocab_size, end_of_text=end)
