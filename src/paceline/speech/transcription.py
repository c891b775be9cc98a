"""Transcribes sounds: all their windows go through one engine, whose rows each advance at their own pace.

A sound asks for its next window when its last one is done, and the next sound begins when another has ended; sounds
that wait are not read yet. A sound that fails, fails alone.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any, TypeAlias, cast, final

import numpy as np
from torch import Tensor

from paceline.api.draft_length import NumDraftTokens
from paceline.api.drafter_like import DrafterLike, VerifierLike
from paceline.api.engine import Engine
from paceline.api.engine_for import engine_for
from paceline.api.streams import Stream
from paceline.core.noise import split_seed
from paceline.core.stats import Summary
from paceline.speech.audio import AudioLike, name_of, read_sound
from paceline.speech.model import SpeechModel, SpeechModelLike, answer_of, speech_model, submit
from paceline.speech.options import SpeechOptions
from paceline.speech.segments import FRAME
from paceline.speech.start import read_start
from paceline.speech.transcript import Segment, Transcript
from paceline.speech.windows import Ask, Asks, Windows

Progress: TypeAlias = Callable[[int, float, float], None]  # number of a sound, seconds of it done, and in all
Ended: TypeAlias = Callable[[int, Transcript], None]
INTERRUPTED = "interrupted"


class TranscriptionInterrupted(KeyboardInterrupt):
    """Ctrl-C; ``transcripts`` has what was done, sounds that had begun with the ``error`` "interrupted"."""

    def __init__(self, transcripts: list[Transcript]) -> None:
        super().__init__(f"interrupted with {len(transcripts)} transcripts")
        self.transcripts = transcripts


@dataclass(slots=True, kw_only=True)
class _Open:
    """A sound that is being transcribed, and its request that runs."""

    number: int
    name: str
    seconds: float
    windows: Windows
    asks: Asks
    ask: Ask
    stream: Stream
    counts: list[Summary]
    encoder_seconds: float = 0.0  # of its windows until now


@final
class Transcriber:
    """A model, a drafter and options for any number of sounds; see ``transcribe``."""

    def __init__(
        self,
        model: SpeechModelLike,
        *,
        options: SpeechOptions | None = None,
        drafter: DrafterLike = None,
        verifier: VerifierLike = "coupled",
        num_draft_tokens: NumDraftTokens = "auto",
        batch_size: int | None = None,
    ) -> None:
        self.model: SpeechModel = speech_model(model)
        self.options = SpeechOptions() if options is None else options
        self._start = read_start(self.model.checkpoint, self.options)
        self._prompt = self.model.prompt(self.options.prompt)
        self._drafter, self._verifier, self._batch_size = drafter, verifier, batch_size
        self._num_draft_tokens: NumDraftTokens = num_draft_tokens

    def finish(
        self,
        sounds: Sequence[AudioLike],
        ended: Ended,
        *,
        progress: Progress | None = None,
        draws: Sequence[int] | None = None,
    ) -> bool:
        """Call ``ended`` with the number and transcript of each sound as it ends; whether all ended. See ``run``.

        Wherever Ctrl-C comes, also in ``ended``, the sounds that had begun are given as far as they were.
        """
        running = self.run(sounds, progress=progress, draws=draws)
        try:
            for number, transcript in running:
                ended(number, transcript)
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt, StopIteration):  # which is raised again after the last
                ended(*running.throw(KeyboardInterrupt()))
                for number, transcript in running:
                    ended(number, transcript)
            return False
        return True

    def run(
        self, sounds: Sequence[AudioLike], *, progress: Progress | None = None, draws: Sequence[int] | None = None
    ) -> Generator[tuple[int, Transcript], None, None]:
        """The number and transcript of each sound, as they end. Ctrl-C first gives those that had begun.

        ``draws`` (None: 0, 1 ...) are numbers by which noise differs from sound to sound.
        """
        engine = self._engine(len(sounds))
        waiting = list(zip(range(len(sounds)), sounds, draws or range(len(sounds)), strict=True))[::-1]
        active: list[_Open] = []
        try:
            while waiting or active:
                while waiting and len(active) < engine.decoder.batch.rows:
                    number, sound, draw = waiting.pop()
                    begun = self._begin(engine, number, sound, split_seed(self.options.seed, draw))
                    if isinstance(begun, Transcript):
                        yield number, begun
                    else:
                        active.append(begun)
                        if progress is not None:
                            progress(number, 0.0, begun.seconds)
                if active:
                    engine.advance()
                for one in [one for one in active if one.stream.done]:
                    ended = self._proceed(engine, one)
                    if progress is not None:
                        seconds = one.seconds if ended else min(one.seconds, one.windows.seek * FRAME)
                        progress(one.number, seconds, one.seconds)
                    if ended is not None:
                        active.remove(one)
                        yield one.number, ended
        except KeyboardInterrupt:
            for one in active:
                one.stream.close()
                yield one.number, self._interrupted(one)
            raise

    def _engine(self, count: int) -> Engine:
        return engine_for(
            self.model.loaded,
            drafter=self._drafter,
            verifier=self._verifier,
            num_draft_tokens=self._num_draft_tokens,
            batch_size=self._batch_size,
            num_texts=max(1, count),
            max_length=None,
        )

    def _begin(self, engine: Engine, number: int, source: AudioLike, seed: int) -> _Open | Transcript:
        """Read a sound and ask for its first window; or what is wrong with it."""
        name, seconds = name_of(source, number), 0.0
        try:
            sound = read_sound(source, self.model.features.rate)
            seconds = sound.seconds
            windows = Windows(
                self.model.features(sound),
                checkpoint=self.model.checkpoint,
                options=self.options,
                start=self._start,
                prompt=self._prompt,
                seed=seed,
            )
            asks = windows.run()
            ask = next(asks)
            stream = submit(engine, ask, self.model.checkpoint)
        except (ValueError, OSError, MemoryError, RuntimeError) as error:  # the last of torch, without memory
            return _failed(name, seconds, error)
        return _Open(
            number=number,
            name=name,
            seconds=seconds,
            windows=windows,
            asks=asks,
            ask=ask,
            stream=stream,
            counts=[],
        )

    def _proceed(self, engine: Engine, one: _Open) -> Transcript | None:
        """Ask for what comes after an answer; the transcript if nothing does."""
        (result,) = one.stream.results()
        if not one.ask.probes:
            one.counts.append(result.stats.summary)
        try:
            following = one.asks.send(answer_of(result, one.ask))
            if following.context is not one.ask.context:
                one.encoder_seconds += self.model.encoder_seconds(one.ask)
            one.ask = following
            one.stream = submit(engine, one.ask, self.model.checkpoint)
        except StopIteration:
            return self._transcript(one)
        except ValueError as error:
            return self._transcript(one, error=str(error))
        return None

    def _interrupted(self, one: _Open) -> Transcript:
        """With what its window said until then."""
        if not one.ask.probes:
            (result,) = one.stream.results()
            one.counts.append(result.stats.summary)
            one.windows.keep(result.token_ids, one.ask.temperature)
        return self._transcript(one, error=INTERRUPTED)

    def _transcript(self, one: _Open, *, error: str | None = None) -> Transcript:
        return transcript_of(
            self.model,
            one.windows,
            name=one.name,
            seconds=one.seconds,
            counts=one.counts,
            encoder_seconds=one.encoder_seconds + self.model.encoder_seconds(one.ask),
            error=error,
        )


def transcript_of(
    model: SpeechModel,
    windows: Windows,
    *,
    name: str,
    seconds: float,
    counts: Sequence[Summary],
    encoder_seconds: float,
    error: str | None = None,
) -> Transcript:
    """What the ``windows`` of a sound have said until now."""
    segments = [
        Segment(
            start=round(found.cut.start, 2),
            end=round(found.cut.end, 2),
            text=model.decode(found.cut.tokens),
            tokens=found.cut.tokens,
            temperature=found.attempt.temperature,
            compression_ratio=found.attempt.compression_ratio,
            avg_logprob=found.attempt.avg_logprob,
            no_speech_prob=found.attempt.no_speech_prob,
        )
        for found in windows.found
    ]
    return Transcript(
        name=name,
        seconds=seconds,
        language=None if windows.language is None else model.checkpoint.language_name(windows.language),
        segments=tuple(segments),
        has_timestamps=windows.timestamps,
        summary=reduce(add, counts) if counts else None,
        encoder_seconds=encoder_seconds,
        error=error,
    )


def transcribe(
    audio: AudioLike | Sequence[AudioLike],
    *,
    model: SpeechModelLike,
    drafter: DrafterLike = None,
    verifier: VerifierLike = "coupled",
    num_draft_tokens: NumDraftTokens = "auto",
    batch_size: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> list[Transcript]:
    """The transcripts of sounds, in order; the words are those of transformers' pipeline at ``num_beams=1``.

    - ``audio``: one or several of: a path; samples at the model's rate, [n] or [channels, n]; a mapping with "array"
      and "sampling_rate".
    - ``model``: the directory or Hub id of a Whisper checkpoint, or what ``paceline.load`` made of it.
    - ``drafter``, ``verifier``, ``num_draft_tokens``, ``batch_size``: as in ``paceline.generate``. Drafting does not
      change the text.
    - ``progress`` (None): called with the number of a sound and the seconds of it that are done, and in all.
    - ``**options``: fields of ``SpeechOptions``: ``language``, ``task``, ``return_timestamps`` and others.

    A sound that cannot be read or transcribed fails alone: its transcript has an ``error``. Raises ValueError for
    options, and a model, that fit no sound at all; on Ctrl-C, TranscriptionInterrupted with what was done.
    """
    known = [field.name for field in fields(SpeechOptions)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(f"unknown options: {', '.join(unknown)}; known: {', '.join(known)}")
    sounds = _listed(audio)
    transcriber = Transcriber(
        model,
        options=SpeechOptions(**options),
        drafter=drafter,
        verifier=verifier,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
    )
    done: dict[int, Transcript] = {}
    if not transcriber.finish(sounds, done.__setitem__, progress=progress):
        raise TranscriptionInterrupted([done[number] for number in sorted(done)])
    return [done[number] for number in range(len(sounds))]


def _listed(audio: AudioLike | Sequence[AudioLike]) -> list[AudioLike]:
    if isinstance(audio, list | tuple):
        return list(cast("Sequence[AudioLike]", audio))
    if isinstance(audio, np.ndarray | Tensor) or not isinstance(audio, Sequence):
        return [cast(AudioLike, audio)]
    return [cast(AudioLike, audio)]  # a path, which is a sequence of letters


def _failed(name: str, seconds: float, error: Exception) -> Transcript:
    return Transcript(
        name=name, seconds=seconds, language=None, segments=(), has_timestamps=False, summary=None, error=str(error)
    )
