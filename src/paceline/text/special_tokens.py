"""Token ids that a checkpoint's files name: which end the output, and which it begins with in an encoder-decoder."""

import json
from pathlib import Path

from paceline.text.tokenizer import TokenizerError


def read_eos(directory: str | Path) -> tuple[int, ...]:
    """End-of-text ids of generation_config.json, or else of config.json, or else none."""
    return _read(directory, "eos_token_id")


def read_start(directory: str | Path) -> tuple[int, ...]:
    """The decoder's start token, and the token that is always first after it, by the same files; () without any."""
    return start_tokens(_read(directory, "decoder_start_token_id"), _read(directory, "forced_bos_token_id"))


def start_tokens(start: tuple[int, ...], forced: tuple[int, ...]) -> tuple[int, ...]:
    """``start`` and what is ``forced`` after it."""
    return (*start, *forced) if start else ()


def _read(directory: str | Path, field: str) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        path = Path(directory) / name
        if not path.is_file():
            continue
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise TokenizerError(f"{path} is not JSON ({error})") from error
        value = raw.get(field) if isinstance(raw, dict) else None
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) for token in ids):
            raise TokenizerError(f"{path}: {field}={value!r}; give a token id or a list of them")
        return tuple(ids)
    return ()
