"""Transcribes a sound by an engine that others use at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from paceline.api.async_engine import AsyncEngine
from paceline.api.results import Result
from paceline.core.noise import split_seed
from paceline.core.stats import Summary
from paceline.speech.audio import Sound
from paceline.speech.model import SpeechModel, WindowRequest, answer_of, request_of
from paceline.speech.options import SpeechOptions
from paceline.speech.start import read_start
from paceline.speech.transcript import Transcript
from paceline.speech.transcription import transcript_of
from paceline.speech.windows import Ask, Windows

Generate: TypeAlias = Callable[[WindowRequest], Awaitable[Result]]


def asking(engine: AsyncEngine, *, client: str = "", timeout: float | None = None) -> Generate:
    """A function that has ``engine`` do one request of a window; ``client`` and ``timeout`` are those of ``submit``."""

    async def generate(asked: WindowRequest) -> Result:
        submitted = await engine.submit(
            asked.prompt,
            asked.params,
            constraints=asked.constraints,
            keep_scores=asked.keep_scores,
            client=client,
            timeout=timeout,
        )
        async with submitted as stream:
            (result,) = await stream.results()
        return result

    return generate


async def transcribed(sound: Sound, model: SpeechModel, options: SpeechOptions, generate: Generate) -> Transcript:
    """The transcript of one sound, that of ``transcribe``. Raises ValueError for options that do not fit the model or
    the sound, and what ``generate`` raises.
    """
    start, prompt = read_start(model.checkpoint, options), model.prompt(options.prompt)
    features = await asyncio.to_thread(model.features, sound)
    windows = Windows(
        features,
        checkpoint=model.checkpoint,
        options=options,
        start=start,
        prompt=prompt,
        seed=split_seed(options.seed, 0),
    )
    asks, counts, seconds = windows.run(), list[Summary](), 0.0
    ask: Ask | None = next(asks)
    while ask is not None:
        result = await generate(request_of(ask, model.checkpoint))
        if not ask.probes:
            counts.append(result.stats.summary)
        try:
            following = asks.send(answer_of(result, ask))
        except StopIteration:
            following = None
        if following is None or following.context is not ask.context:
            seconds += model.encoder_seconds(ask)
        ask = following
    return transcript_of(model, windows, name="file", seconds=sound.seconds, counts=counts, encoder_seconds=seconds)
