"""A checkpoint's own tokenizer.json, its end-of-text ids, and whether two tokenizers agree.

Uses the ``tokenizers`` library as it is: rebuilding a tokenizer from its model_type may change it. Knows nothing of
models, and of chat templates only that they are somebody else's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import final

import tokenizers

TOKENIZER_FILE = "tokenizer.json"


class TokenizerError(ValueError):
    """A tokenizer that is missing or unreadable, with the way out."""


@final
class Tokenizer:
    """Encodes prompts and decodes texts exactly as tokenizer.json says. Raises TokenizerError if it cannot be read."""

    def __init__(self, *, path: Path) -> None:
        self.path = path
        try:
            self._inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a missing and for a broken file
            raise TokenizerError(f"{path} is not a tokenizer ({error})") from error
        self._inner.no_padding()
        self._inner.no_truncation()

    @property
    def size(self) -> int:
        """Number of tokens, the added ones included."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    @property
    def base_vocabulary(self) -> dict[str, int]:
        """Token to id, without the added tokens."""
        return self._inner.get_vocab(with_added_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` with the beginning-of-text token, if the tokenizer adds one."""
        return self._inner.encode(text).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``; special tokens have none, and bytes that are no UTF-8 become U+FFFD."""
        return self._inner.decode(list(tokens), skip_special_tokens=True)


def load_tokenizer(directory: str | Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint directory, or None where there is none: then prompts are token ids."""
    path = Path(directory) / TOKENIZER_FILE
    return Tokenizer(path=path) if path.is_file() else None


def read_eos(directory: str | Path) -> tuple[int, ...]:
    """End-of-text ids: of generation_config.json if it gives any, else of config.json, else none."""
    for name in ("generation_config.json", "config.json"):
        path = Path(directory) / name
        if not path.is_file():
            continue
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise TokenizerError(f"{path} is not JSON ({error})") from error
        value = raw.get("eos_token_id") if isinstance(raw, dict) else None
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) for token in ids):
            raise TokenizerError(f"{path}: eos_token_id={value!r}; give a token id or a list of them")
        return tuple(ids)
    return ()


def same_vocabulary(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether both give every base token the same id. Added tokens and padding of the models may differ."""
    return first.base_vocabulary == second.base_vocabulary
