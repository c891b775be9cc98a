"""Small random Whisper checkpoints with windows of two seconds, and sounds for them."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizerFast,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from paceline.api import Loaded, load

SECONDS, RATE = 2, 16000  # of a window
POSITIONS = 40  # of the decoder
LANGUAGES = ("en", "de", "fr")
TASKS = ("translate", "transcribe")
END, START, NO_TIMESTAMPS, PREVIOUS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|startofprev|>"
OTHERS = (*(f"<|{task}|>" for task in TASKS), "<|startoflm|>", PREVIOUS, "<|nospeech|>", NO_TIMESTAMPS)


class Whisper:
    """A checkpoint: transformers' model, float64, its tokenizer and its feature extractor; and its directory."""

    def __init__(self, seed, *, english=False, shape=(), **generation):
        self.tokenizer = tokenizer()
        self.ids = ids = self.tokenizer.get_vocab()
        self.model = random_model(seed, ids, **dict(shape))
        own = GenerationConfig(
            decoder_start_token_id=ids[START],
            bos_token_id=ids[END],
            eos_token_id=ids[END],
            pad_token_id=ids[END],
            max_length=POSITIONS,
        )
        languages = {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES}
        said = {
            "no_timestamps_token_id": ids[NO_TIMESTAMPS],
            "prev_sot_token_id": ids[PREVIOUS],
            "is_multilingual": not english,
            "return_timestamps": False,
            "max_initial_timestamp_index": 20,
            "begin_suppress_tokens": [0, ids[END]],
            "suppress_tokens": [3, 4, ids[START], *languages.values(), *(ids[name] for name in OTHERS[:4])],
        }
        if english:
            said["forced_decoder_ids"] = [[1, ids[NO_TIMESTAMPS]]]
        else:
            said |= {"lang_to_id": languages, "task_to_id": {task: ids[f"<|{task}|>"] for task in TASKS}}
        for name, value in {**said, **generation}.items():
            setattr(own, name, value)
        self.model.generation_config = own
        self.extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)
        own.do_sample = own.top_k is not None  # or it is not saved
        self.directory = Path(mkdtemp(prefix="whisper"))
        self.save(self.directory)

    def save(self, directory):
        """Write model, tokenizer and feature extractor."""
        for part in (self.model, self.tokenizer, self.extractor):
            part.save_pretrained(directory)

    @property
    def loaded(self) -> Loaded:
        return load(self.directory)

    @property
    def first(self):
        """The id of <|0.00|>."""
        return self.ids[NO_TIMESTAMPS] + 1

    def generate(self, samples, **options):
        """Token ids, segments as (start, end) in seconds: transformers' own, for one sound."""
        long = len(samples) > self.extractor.n_samples
        if long:  # which transformers leaves to whoever calls it
            options = {"return_timestamps": True, **options}
        how = {"truncation": False, "padding": "longest"} if long else {}
        found = self.extractor(samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **how)
        given = self.model.generate(
            found.input_features.double(), attention_mask=found.attention_mask, return_segments=True, **options
        )
        segments = [(float(one["start"]), float(one["end"])) for one in given["segments"][0]]
        return given["sequences"][0].tolist(), [(round(start, 2), round(end, 2)) for start, end in segments]


@cache
def whisper(seed=0, **options):
    """One that is made once."""
    return Whisper(seed, **options)


@cache
def loaded(seed=0, **options):
    """Ours of the same."""
    return whisper(seed, **options).loaded


@cache
def near(seed=0):
    """A draft model that often agrees with ``loaded(seed)``: its weights with noise."""
    whole, noise = Whisper(seed), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in whole.model.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=noise)
    whole.save(whole.directory)
    return whole.loaded


@cache
def sound(seconds, seed=0):
    """Tones that change five times a second, over noise."""
    random = np.random.default_rng(seed)
    count = int(seconds * RATE)
    tones = np.repeat(random.uniform(100, 2000, int(seconds * 5) + 1), RATE // 5)[:count]
    wave = 0.3 * np.sin(2 * np.pi * tones * np.arange(count) / RATE)
    return (wave + 0.05 * random.standard_normal(count)).astype(np.float32)


def tokenizer():
    """Byte-level letters, Whisper's special tokens, and timestamps of one window."""
    known = bytes_to_unicode()
    letters = [*list(known.values())[:59], known[ord(" ")]]
    found = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    special = (END, START, *(f"<|{code}|>" for code in LANGUAGES), *OTHERS)
    found.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    stamps = (f"<|{number * 0.02:.2f}|>" for number in range(SECONDS * 50 + 1))
    found.add_tokens([AddedToken(name, normalized=False) for name in stamps])
    return WhisperTokenizerFast(tokenizer_object=found, unk_token=END, bos_token=END, eos_token=END, pad_token=END)


def random_model(seed, ids, **shape):
    sizes = dict(
        vocab_size=len(ids),
        num_mel_bins=80,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=SECONDS * 50,
        max_target_positions=POSITIONS,
        decoder_start_token_id=ids[START],
        bos_token_id=ids[END],
        eos_token_id=ids[END],
        pad_token_id=ids[END],
        init_std=0.2,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(seed)
    return WhisperForConditionalGeneration(WhisperConfig(**{**sizes, **shape})).double().eval()
