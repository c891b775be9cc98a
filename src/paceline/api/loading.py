"""A checkpoint directory as one value: model, tokenizer and end-of-text ids. Knows nothing of decoding."""

from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.models import loading
from paceline.models.base import LM
from paceline.text.tokenizer import Tokenizer, load_tokenizer, read_eos

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model ready to decode. ``tokenizer`` is None where the directory has none: prompts are then token ids."""

    lm: LM
    tokenizer: Tokenizer | None
    eos: tuple[int, ...]
    path: Path
    dtype: torch.dtype


def load(path: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Loaded:
    """Load a Hugging Face directory. ``dtype`` None keeps the precision of the files.

    Raises ValueError, naming the reason and the way out, for a directory that is missing, no model, of an unsupported
    architecture or with unreadable files.
    """
    path = Path(path)
    lm = loading.load(path, dtype=dtype, device=device)
    return Loaded(lm=lm, tokenizer=load_tokenizer(path), eos=read_eos(path), path=path, dtype=lm.dtype)
