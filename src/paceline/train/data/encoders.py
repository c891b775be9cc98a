"""Tokenisation of texts and chats: by the target's tokenizer, or byte by byte.

N tokens of a text.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias, final

import numpy as np

from paceline.text.tokenizer import Tokenizer
from paceline.train.data.config import DataConfig

Message: TypeAlias = Mapping[str, object]
NUM_BYTES = 256


class Encoder(ABC):
    """Text to token ids below ``vocab_size``. ``end_of_text`` is appended to each text; None: nothing is."""

    def __init__(self, *, vocab_size: int, end_of_text: int | None, source_vocab: int | None = None) -> None:
        """``source_vocab`` (None: ``vocab_size``) bounds the tokens that an encoder reads."""
        if end_of_text is not None and not 0 <= end_of_text < vocab_size:
            raise ValueError(
                f"end_of_text {end_of_text}: the vocabulary has {vocab_size} tokens; give an id below that"
            )
        self.vocab_size, self.end_of_text = vocab_size, end_of_text
        self.source_vocab = vocab_size if source_vocab is None else source_vocab

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for encoders that give the same ids for every text."""

    @abstractmethod
    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids [N] of every text, without ``end_of_text``."""

    @abstractmethod
    def chat(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
        """Ids [N] of a chat, and bool [N] which are the assistant's. Raises ValueError if they cannot be located."""


@final
class ByteEncoder(Encoder):
    """A UTF-8 byte is a token."""

    @property
    def fingerprint(self) -> str:
        return f"bytes/{self.end_of_text}"

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The bytes."""
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def chat(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
        """Raises ValueError: bytes have no chat template."""
        raise ValueError("tokenizer: bytes has no chat template; take a target with a tokenizer, or give texts")


@final
class TokenizerEncoder(Encoder):
    """The target's tokenizer, with the special tokens that it adds to a text. Without one, only token ids are read."""

    def __init__(self, *, tokenizer: Tokenizer | None, vocab_size: int, end_of_text: int | None) -> None:
        if tokenizer is not None and tokenizer.size > vocab_size:
            raise ValueError(
                f"the tokenizer of {tokenizer.name} has {tokenizer.size} tokens and the target {vocab_size}: give the "
                "target's own tokenizer"
            )
        super().__init__(vocab_size=vocab_size, end_of_text=end_of_text)
        self._tokenizer = tokenizer

    @property
    def fingerprint(self) -> str:
        if self._tokenizer is None:
            return f"ids/{self.end_of_text}"
        definition = self._tokenizer.definition or json.dumps(self._tokenizer.base_vocabulary, sort_keys=True)
        identity = json.dumps([definition, self._tokenizer.template, self.end_of_text])
        return f"tokenizer/{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As the target reads them. Raises ValueError for texts without a tokenizer."""
        if not texts:
            return []
        if self._tokenizer is None:
            raise ValueError(
                "data: the target has no tokenizer; put tokenizer.json beside it, give tokenizer: bytes, or token ids"
            )
        return [np.asarray(ids, dtype=np.int64) for ids in self._tokenizer.encode_many(texts)]

    def chat(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
        """By the tokenizer's chat template."""
        if self._tokenizer is None:
            raise ValueError("the target has no tokenizer, and so no chat template; put tokenizer.json beside it")
        tokens, learned = self._tokenizer.chat_turns(messages)
        return np.asarray(tokens, dtype=np.int64), np.asarray(learned, dtype=bool)


def make_encoder(
    config: DataConfig, *, tokenizer: Tokenizer | None, vocab_size: int, end_of_text: int | None
) -> Encoder:
    """The encoder of the section. Raises ValueError if it does not fit the target."""
    end = config.end_of_text if config.end_of_text is not None else end_of_text
    if config.tokenizer == "target":
        return TokenizerEncoder(tokenizer=tokenizer, vocab_size=vocab_size, end_of_text=end)
    if vocab_size < NUM_BYTES:
        raise ValueError(f"data: tokenizer: bytes needs a target of {NUM_BYTES} tokens; it has {vocab_size}")
    return ByteEncoder(vocab_size=vocab_size, end_of_text=end)
