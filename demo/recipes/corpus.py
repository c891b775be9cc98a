"""The tokenizer of the embedded models, and their corpus in its tokens."""

from collections.abc import Iterable

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.train.data import LibraryFile

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE over ``texts``; id 0 is the end-of-text token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, files: Iterable[LibraryFile]) -> np.ndarray:
    """All files in one token array, each followed by the end-of-text token."""
    tokens: list[int] = []
    for encoding in tokenizer.encode_batch([file.text for file in files]):
        tokens.extend(encoding.ids)
        tokens.append(0)
    return np.asarray(tokens, dtype=np.uint16)
