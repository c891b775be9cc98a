"""What the study of speech measures in a cell: our sides in turns of some tokens, then transformers, part by part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.even_decoding import CONTROL, PLAIN, decode_evenly, flat
from benchmarks.study import Timing
from paceline.api import Engine, Loaded, SamplingParams
from paceline.api.prompts import EncoderDecoderPrompt
from paceline.bench.raw import Record
from paceline.bench.statistics import is_void, pooled_ratio
from paceline.core.context import Context
from paceline.core.stats import Summary
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.speech.audio import read_sound
from paceline.speech.model import SpeechModel
from paceline.speech.options import SpeechOptions
from paceline.speech.start import read_start
from paceline.speech.windows import FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is transcribed."""

    batch_size: int
    num_sounds: int

    @property
    def name(self) -> str:
        return f"{self.num_sounds} sounds, batch {self.batch_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Sounds as the models read them: one window each, and what their outputs begin with."""

    features: tuple[torch.Tensor, ...]
    prompt: tuple[int, ...]

    def prompts(self, part: slice) -> list[EncoderDecoderPrompt]:
        """Of some windows; each is encoded anew."""
        return [
            EncoderDecoderPrompt(inputs={FEATURES: features}, prompt=self.prompt) for features in self.features[part]
        ]


def windows_of(model: SpeechModel, paths: Sequence[Path]) -> Windows:
    """The first window of every file, transcribed in English without timestamps."""
    sounds = [read_sound(path, model.features.rate) for path in paths]
    start = read_start(model.checkpoint, SpeechOptions(language="en"))
    return Windows(
        features=tuple(model.features(sound)[:, : model.checkpoint.frames] for sound in sounds),
        prompt=start.tokens(None, model.checkpoint.no_timestamps),
    )


Call = Callable[[slice, int], list[tuple[int, ...]]]  # of a part, so many tokens at most: its outputs


def peer_of(path: Path, dtype: str, windows: Windows, eos: int) -> Call:
    """transformers' ``generate``, as its pipeline calls it for sounds of one window."""
    from transformers import WhisperForConditionalGeneration
    from transformers.utils import logging

    logging.set_verbosity_error()
    model: Any = WhisperForConditionalGeneration.from_pretrained(path, dtype=dtype, local_files_only=True).eval()

    @torch.inference_mode()
    def call(part: slice, max_tokens: int) -> list[tuple[int, ...]]:
        features = torch.stack(windows.features[part]).to(model.dtype)
        given = {"language": "en", "task": "transcribe", "return_timestamps": False, "num_beams": 1, "do_sample": False}
        found = model.generate(input_features=features, max_new_tokens=max_tokens, **given).tolist()
        return [_output(row, windows.prompt, eos) for row in found]

    return call


def _output(row: list[int], prompt: tuple[int, ...], eos: int) -> tuple[int, ...]:
    """What follows a prompt, where a row begins with it, without the end and what fills up."""
    begun = tuple(row[: len(prompt)]) == prompt
    return tuple(token for token in row[len(prompt) if begun else 0 :] if token != eos)


def measure_cell(
    cell: Cell,
    windows: Windows,
    *,
    sides: Mapping[str, tuple[Loaded, Loaded | None]],
    peers: Mapping[str, Call],
    max_tokens: int,
    timing: Timing,
) -> Record:
    """Seconds of every part of every repeat, by side, and what was decoded. The first repeat is a warm-up.

    Raises RuntimeError if drafting changes a token.
    """
    length = len(windows.prompt) + max_tokens
    eos = sides[PLAIN][0].eos[0]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, detokenize=False)

    def engine(name: str) -> Engine:
        target, draft = sides[name]
        return Engine(target, drafter=draft, batch_size=cell.batch_size, max_length=length)

    def timed(call: Callable[[], object]) -> float:
        start = timing.clock()
        call()
        return timing.clock() - start

    def first(name: str, part: slice) -> float:
        made, prompts = engine(name), windows.prompts(part)
        return timed(lambda: made.submit(prompts, replace(params, max_tokens=1)).drain())

    seconds: dict[str, list[list[float]]] = {name: [] for name in (*sides, *peers)}
    firsts: dict[str, list[float]] = {name: [] for name in (*sides, *peers)}
    encoder: list[list[float]] = []
    summaries: dict[str, Summary] = {}
    equal: dict[str, list[bool]] = {name: [] for name in peers}
    written = 0
    for repeat in range(-1, timing.repeats):
        for repeats in (*seconds.values(), encoder):
            repeats.append([])
        if repeat == 0:  # what was before was a warm-up
            firsts = {name: [] for name in seconds}
        for at in range(0, cell.num_sounds, cell.batch_size):
            part = slice(at, at + cell.batch_size)
            order = list(sides)[:: 1 if (repeat + at) % 2 == 0 else -1]
            done = decode_evenly(
                {name: partial(engine, name) for name in order},
                windows.prompts(part),
                [params] * cell.batch_size,
                clock=timing.clock,
            )
            if any(one.tokens != done[PLAIN].tokens for one in done.values()):
                raise RuntimeError(f"{cell.name}: drafting changed a token; please report it")
            for name, one in done.items():
                seconds[name][-1].append(one.seconds)
                firsts[name].append(first(name, part))
            encoder[-1].append(timed(partial(_encode, _native(sides[PLAIN][0]), windows.features[part])))
            outputs = [tuple(token for token in row if token != eos) for row in done[PLAIN].tokens]
            for name, call in peers.items():
                start = timing.clock()
                found = call(part, max_tokens)
                seconds[name][-1].append(timing.clock() - start)
                firsts[name].append(timed(partial(call, part, 1)))
                equal[name] += [one == other for one, other in zip(found, outputs, strict=True)]
            if repeat == timing.repeats - 1:
                written += sum(map(len, done[PLAIN].tokens))
                for name, one in done.items():
                    summaries[name] = one.summary if name not in summaries else summaries[name] + one.summary
    taken = {name: repeats[1:] for name, repeats in seconds.items()}
    return {
        "void": is_void([pooled_ratio(flat(taken[PLAIN]), flat(taken[CONTROL])).value]),
        "seconds": taken,
        "first": {name: median(values) for name, values in firsts.items()},
        "encoder": encoder[1:],
        "tokens": written,
        "summaries": {name: asdict(one) for name, one in summaries.items()},
        "equal": {name: sum(same) / len(same) for name, same in equal.items()},
    }


def _encode(lm: EncoderDecoderLM, windows: Sequence[torch.Tensor]) -> None:
    """Encode windows, and keep nothing: states of a context that lives are not made again for an equal one."""
    lm.encode([Context({FEATURES: features}) for features in windows])


def _native(loaded: Loaded) -> EncoderDecoderLM:
    assert isinstance(loaded.lm, EncoderDecoderLM)
    return loaded.lm
