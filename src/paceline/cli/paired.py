"""``paceline data regenerate`` for an encoder-decoder: what its encoder reads, and the target's own outputs for it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from rich.console import Console

from paceline.cli.command import EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.sound_progress import SoundProgress

if TYPE_CHECKING:
    from paceline.api import SamplingParams
    from paceline.cli.draft_options import DraftOptions
    from paceline.cli.options import ModelOptions
    from paceline.cli.prompt_file.prompts import Entry
    from paceline.speech import SpeechOptions, Transcript
    from paceline.speech.model import SpeechModel
    from paceline.train.data.config import DataConfig

INTERRUPTED = "interrupted"
UNUSED = ("top_k", "top_p", "min_p", "ignore_eos")  # options that a transcription does not have


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A sound to transcribe, and how."""

    path: Path
    language: str | None
    task: str
    temperature: float

    def options(self, params: "SamplingParams") -> "SpeechOptions":
        """With the limits and the seed of ``params``."""
        from paceline.speech import SpeechOptions

        assert params.seed is not None
        return SpeechOptions(
            language=self.language,
            task=self.task,
            return_timestamps=False,
            temperature=self.temperature,
            max_new_tokens=params.max_tokens,
            seed=params.seed,
        )

    @property
    def digest(self) -> str:
        """Of what decides its output; the sound by its size."""
        from paceline.cli.prompt_file.prompts import digest

        facts = [self.path.name, self.path.stat().st_size, self.language, self.task, self.temperature]
        return digest({"sound": facts})


def source_entries(data: "DataConfig") -> "list[Entry]":
    """Every source of the pairs of ``data``, as an entry of a prompt file. Raises ValueError naming a wrong line."""
    from paceline.cli.prompt_file.prompts import Entry, digest
    from paceline.train.data.config import PairsSource
    from paceline.train.data.sources.pairs import read_sources

    found: list[Entry] = []
    for source in data.sources:
        assert isinstance(source, PairsSource)
        for value in read_sources(source):
            found.append(Entry(index=len(found), prompt=value, digest=digest({"prompt": value})))
    return found


def spoken_entries(data: "DataConfig", temperatures: Sequence[float]) -> list[Spoken]:
    """Every sound of ``data``, at the temperatures in turn. Raises ValueError naming a wrong line."""
    from paceline.train.data.config import SoundsSource
    from paceline.train.data.sources.pairs import read_sounds

    found: list[tuple[SoundsSource, Path]] = []
    for source in data.sources:
        assert isinstance(source, SoundsSource)
        found += [(source, path) for path in read_sounds(source)]
    return [
        Spoken(
            path=path,
            language=source.language,
            task=source.task,
            temperature=temperatures[index % len(temperatures)],
        )
        for index, (source, path) in enumerate(found)
    ]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenBatch:
    """Transcribes sounds into ``path``; resumes as a prompt file does."""

    model: "ModelOptions"
    drafting: "DraftOptions"
    batch_size: int | None
    params: "SamplingParams"
    path: Path
    overwrite: bool
    sounds: Sequence[Spoken]
    notes: Console
    quiet: bool

    def run(self) -> int:
        """Transcribe what is missing; the exit code."""
        from paceline.api import SamplingParams
        from paceline.cli.prompt_file.fingerprint import fingerprint
        from paceline.cli.prompt_file.journal import Finished, ResultFile, read_finished
        from paceline.speech.model import speech_model

        for name in UNUSED:
            value = getattr(self.params, name)
            if value != getattr(SamplingParams(), name):
                option = name.replace("_", "-")
                raise ValueError(f"--{option} {value}: sounds are transcribed as the checkpoint says; leave it out")
        run = fingerprint(self.model, self.drafting, self.params.differing())
        digests = [sound.digest for sound in self.sounds]
        finished = Finished() if self.overwrite else read_finished(self.path, run=run, digests=digests)
        rest = range(finished.num_written, len(self.sounds))
        missing = [index for index in rest if index not in finished.waiting]
        model = speech_model(self.model.load())
        sink, complete = ResultFile(self.path, finished=finished), False
        try:
            with SoundProgress(console=self.notes, files=len(missing), shown=not self.quiet) as progress:

                def put(index: int, outcome: Mapping[str, object]) -> None:
                    sink.put({"index": index, "run": run, "prompt_hash": digests[index], **outcome})
                    progress.done()

                kinds: dict[SpeechOptions, list[int]] = {}
                for index in missing:
                    kinds.setdefault(self.sounds[index].options(self.params), []).append(index)
                complete = all(self._transcribe(model, part, options, put) for options, part in kinds.items())
        finally:
            sink.close(complete=complete)
        return EXIT_OK if complete else EXIT_INTERRUPTED

    def _transcribe(
        self,
        model: "SpeechModel",
        part: Sequence[int],
        options: "SpeechOptions",
        put: Callable[[int, Mapping[str, object]], None],
    ) -> bool:
        """Those of the sounds that fit a window; whether nothing interrupted it."""
        from paceline.speech import Transcriber
        from paceline.speech.audio import AudioError, read_sound
        from paceline.train.data.regenerated import LONG, left_out

        kept: list[int] = []
        for index in part:
            try:
                sound = read_sound(self.sounds[index].path, model.features.rate)
            except AudioError as error:
                put(index, left_out("it failed", error=str(error)))
                continue
            if len(sound.samples) > model.features.num_samples:
                put(index, left_out(LONG))
            else:
                kept.append(index)
        if not kept:
            return True
        transcriber = Transcriber(
            model.loaded,
            options=options,
            drafter=self.drafting.choose(model.loaded),
            verifier=self.drafting.verifier,
            num_draft_tokens=self.drafting.count,
            batch_size=self.batch_size,
        )

        def ended(number: int, transcript: "Transcript") -> None:
            if transcript.error != INTERRUPTED:
                index = kept[number]
                put(index, self._outcome(model, self.sounds[index], options, transcript))

        return transcriber.finish([self.sounds[index].path for index in kept], ended, draws=kept)

    def _outcome(
        self, model: "SpeechModel", sound: Spoken, options: "SpeechOptions", transcript: "Transcript"
    ) -> dict[str, object]:
        """The sound, from the folder of the file that is written, and what training reads of its transcript."""
        from paceline.speech.start import spoken_tokens
        from paceline.train.data.regenerated import TIMED, left_out, training_row

        if transcript.error is not None:
            return left_out("it failed", error=transcript.error)
        if any(token >= model.checkpoint.first_timestamp for token in transcript.tokens):
            return left_out(TIMED)  # by which it was cut, and perhaps decoded again from there
        prompt, output, ended = spoken_tokens(model.checkpoint, options, transcript)
        path = os.path.relpath(sound.path, self.path.parent)
        row = training_row(prompt, output, finish_reason="stop" if ended else "length")
        return {"audio": path, "output": transcript.text.strip(), **row}
