"""A made-up speech of twenty syllables, each a tone of an eighth of a second, and the files of a Whisper that reads it.

Two syllables make a word. Tokens are syllables, with or without the space before them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperFeatureExtractor, WhisperTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

SECONDS, RATE, SHARE = 10, 16000, 0.125  # of a window, samples of a second, seconds of a syllable
LONGEST = int(SECONDS / SHARE)  # syllables of a window
SYLLABLES = tuple(first + second for first in "klmst" for second in "aeio")
PITCHES = tuple(200 * 1.17**number for number in range(len(SYLLABLES)))  # Hz
LOUDNESS = 0.3
END, START, NO_TIMESTAMPS, PREVIOUS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|startofprev|>"
LANGUAGE, TASKS = "<|en|>", ("translate", "transcribe")
SPECIAL = (END, START, LANGUAGE, *(f"<|{task}|>" for task in TASKS), "<|startoflm|>", PREVIOUS, "<|nospeech|>")
FIRST = 256  # the id of the first syllable, behind those of bytes
POSITIONS = 128  # of the decoder


def sound_of(syllables: Sequence[int], *, noise: float, seed: int) -> np.ndarray:
    """Samples [n] of ``syllables``, given by number, in white noise."""
    random = np.random.default_rng(seed)
    count = int(SHARE * RATE)
    at = np.arange(count) / RATE
    shape = np.minimum(1.0, np.minimum(at, SHARE - at) / 0.02) * (at < 0.9 * SHARE)
    parts = [shape * np.sin(2 * np.pi * PITCHES[one] * at + random.uniform(0, 2 * np.pi)) for one in syllables]
    samples = LOUDNESS * np.concatenate(parts) + noise * random.standard_normal(count * len(syllables))
    return samples.astype(np.float32)


def tokenizer(num_unused: int = 0) -> WhisperTokenizerFast:
    """Bytes, syllables, ``num_unused`` tokens that no text has, Whisper's special tokens, and timestamps."""
    known = list(bytes_to_unicode().values())
    space = bytes_to_unicode()[ord(" ")]
    unused = (f"unused-{number}" for number in range(num_unused))
    names = [*known, *SYLLABLES, *(space + syllable for syllable in SYLLABLES), *unused]
    merges = [(syllable[0], syllable[1]) for syllable in SYLLABLES] + [(space, syllable) for syllable in SYLLABLES]
    made = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (*SPECIAL, NO_TIMESTAMPS)])
    stamps = (f"<|{number * 0.02:.2f}|>" for number in range(SECONDS * 50 + 1))
    made.add_tokens([AddedToken(name, normalized=False) for name in stamps])
    return WhisperTokenizerFast(tokenizer_object=made, unk_token=END, bos_token=END, eos_token=END, pad_token=END)


def extractor() -> WhisperFeatureExtractor:
    """Of windows of this speech."""
    return WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS, sampling_rate=RATE)


def lesson(syllables: Sequence[int], ids: dict[str, int]) -> list[int]:
    """The decoder's tokens for a window: start, language, task, no timestamps, the syllables, the end."""
    spoken = [FIRST + one + (len(SYLLABLES) if at % 2 == 0 else 0) for at, one in enumerate(syllables)]
    return [ids[START], ids[LANGUAGE], ids["<|transcribe|>"], ids[NO_TIMESTAMPS], *spoken, ids[END]]


def layout(ids: dict[str, int]) -> dict[str, object]:
    """The fields of config.json that ids decide."""
    return {
        "vocab_size": len(ids),
        "decoder_start_token_id": ids[START],
        "bos_token_id": ids[END],
        "eos_token_id": ids[END],
        "pad_token_id": ids[END],
    }


def write_files(folder: Path, num_unused: int = 0) -> None:
    """Tokenizer, feature extractor and generation defaults beside the weights."""
    made = tokenizer(num_unused)
    ids = made.get_vocab()
    own = GenerationConfig(
        **{name: value for name, value in layout(ids).items() if name != "vocab_size"}, max_length=POSITIONS
    )
    whisper = {
        "no_timestamps_token_id": ids[NO_TIMESTAMPS],
        "prev_sot_token_id": ids[PREVIOUS],
        "is_multilingual": True,
        "return_timestamps": False,
        "lang_to_id": {LANGUAGE: ids[LANGUAGE]},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in TASKS},
        "suppress_tokens": [],
        "begin_suppress_tokens": [],
    }
    for name, value in whisper.items():
        setattr(own, name, value)
    for part in (made, extractor(), own):
        part.save_pretrained(folder)
