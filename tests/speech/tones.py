"""Whisper checkpoints that know three tones: ``python -m tests.speech.tones DIRECTORY`` trains one, in a minute on one
core, with ``--small DIRECTORY`` a smaller one; ``python -m tests.speech.tones --say FILE "LOW HIGH"`` makes sounds.

Each tone is a word: 300 Hz "LOW", 900 Hz "MID", 2400 Hz "HIGH". A tone takes half a second.
"""

import sys
from pathlib import Path

import numpy as np
import soundfile
import torch

from tests.speech.checkpoints import NO_TIMESTAMPS, RATE, SECONDS, START, Whisper

WORDS = {"LOW": 300, "MID": 900, "HIGH": 2400}
SHARE = 0.5  # seconds of one tone
MOST = int(SECONDS / SHARE)  # of a window


def tones(words, seed=0):
    """The sound of ``words``, with some noise."""
    random = np.random.default_rng(seed)
    count = int(SHARE * RATE)
    at = np.arange(count) / RATE
    shape = np.minimum(1.0, np.minimum(at, SHARE - at) / 0.05) * (at < 0.9 * SHARE)
    parts = [shape * np.sin(2 * np.pi * WORDS[word] * at + random.uniform(0, 6)) for word in words]
    return (0.3 * np.concatenate(parts) + 0.01 * random.standard_normal(count * len(words))).astype(np.float32)


def lesson(whole, words, timestamps):
    """The decoder's tokens for a window of ``words``: prompt, text, end."""
    ids, text = whole.ids, whole.tokenizer.encode("".join(f" {word}" for word in words), add_special_tokens=False)
    prompt = [ids[START], ids["<|en|>"], ids["<|transcribe|>"]]
    if not timestamps:
        return [*prompt, ids[NO_TIMESTAMPS], *text, ids["<|endoftext|>"]]
    first = ids[NO_TIMESTAMPS] + 1
    return [*prompt, first, *text, first + round(len(words) * SHARE / 0.02), ids["<|endoftext|>"]]


def trained(seed, *, steps=400, batch=16, **shape):
    """A checkpoint after ``steps`` of training, float32."""
    whole = Whisper(
        seed, shape=tuple({"init_std": 0.05, **shape}.items()), suppress_tokens=[], begin_suppress_tokens=[]
    )
    model, random = whole.model.float().train(), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        spoken = [list(random.choice(list(WORDS), random.integers(1, MOST + 1))) for _ in range(batch)]
        sounds = [tones(words, int(random.integers(1 << 30))) for words in spoken]
        features = whole.extractor(sounds, sampling_rate=RATE, return_tensors="pt").input_features
        lessons = [torch.tensor(lesson(whole, words, bool(random.integers(2)))) for words in spoken]
        tokens = torch.nn.utils.rnn.pad_sequence(lessons, batch_first=True, padding_value=-100)
        labels = tokens[:, 1:]
        logits = model(input_features=features, decoder_input_ids=tokens[:, :-1].clamp(min=0)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
    model.eval()
    return whole, float(loss.detach())


def main(first, *others):
    """Train a checkpoint; or with --say FILE WORDS, write the sound of words."""
    torch.set_num_threads(1)
    if first == "--say":
        path, words = others
        soundfile.write(path, tones(words.split()), RATE, subtype="PCM_16")
    elif first == "--small":
        trained(1, decoder_layers=1)[0].save(Path(*others))
    else:
        trained(0, d_model=64, decoder_layers=4)[0].save(Path(first))


if __name__ == "__main__":
    main(*sys.argv[1:])
