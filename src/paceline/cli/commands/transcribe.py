"""``paceline transcribe``: files of sound to text, subtitles or JSON."""

import sys
import time
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.command import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.console import open_notes
from paceline.cli.draft_options import DraftOptions
from paceline.cli.options import OUTPUT, POSITIONAL, BatchSize, LogLevel, ModelOptions, Quiet, one_of
from paceline.cli.speech_options import SpeechOptions

if TYPE_CHECKING:
    from paceline.speech import Transcriber, Transcript

FORMATS = {"text": ".txt", "srt": ".srt", "vtt": ".vtt", "json": ".json"}
SUBTITLES = ("srt", "vtt")  # which are nothing without timestamps


@dataclass(frozen=True, slots=True)
class Transcribe(Command):
    """Transcribe files of sound, or the sound of videos, with a Whisper checkpoint. Drafting does not change the text.

    The words are those of transformers' pipeline at num_beams=1. A file that cannot be read or transcribed fails alone.
    Ctrl-C keeps what is done.

    Examples:

        paceline transcribe talk.flac --model DIR
        paceline transcribe *.mp3 --model DIR --format srt --output-dir subtitles
        paceline transcribe talk.mp4 --model DIR --draft SMALL_DIR --language de --format json
        paceline transcribe talk.wav --model DIR --temperature 0 --temperature 0.4 --logprob-threshold -1
    """

    audio: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """Files of sound or video."""
    _: KW_ONLY
    model: ModelOptions
    batch_size: BatchSize = None
    drafting: DraftOptions = field(default_factory=DraftOptions)
    speech: SpeechOptions = field(default_factory=SpeechOptions)
    format: Annotated[str, Parameter(group=OUTPUT), one_of(tuple(FORMATS))] = "text"
    """text, srt, vtt or json; JSON has segments with their tokens, and one object per line."""
    output_dir: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Write a file for each into this directory, named after it; by default all goes to standard output."""
    overwrite: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Replace files that exist."""
    quiet: Quiet = False
    log_level: LogLevel = None

    def run(self) -> int:
        """Transcribe and write, each file when it is done; those that failed are named."""
        from paceline.cli.sound_progress import SoundProgress

        notes = open_notes(quiet=self.quiet, log_level=self.log_level)
        self.drafting.check()
        outputs = self._outputs()
        transcriber = self._transcriber()
        start = time.perf_counter()
        shown = _Shown(self, outputs)
        with SoundProgress(console=notes, files=len(self.audio), shown=not self.quiet) as progress:

            def ended(number: int, transcript: "Transcript") -> None:
                shown.add(number, transcript)
                progress.done()

            complete = transcriber.finish(self.audio, ended, progress=progress.reached)
        shown.rest()
        done = [transcript for _, transcript in sorted(shown.done.items())]
        failed = [one for one in done if one.error is not None]
        for one in failed:
            error = str(one.error)
            print(f"paceline: {error if error.startswith(one.name) else f'{one.name}: {error}'}", file=sys.stderr)
        if not self.quiet and notes.is_terminal:
            _summarise(done, notes, time.perf_counter() - start)
        return EXIT_INTERRUPTED if not complete else EXIT_DIFFERENT if failed else EXIT_OK

    def _outputs(self) -> list[Path]:
        """Where each file's text goes; nothing for standard output. Raises ValueError before anything is loaded."""
        if not self.audio:
            raise ValueError("no AUDIO: give one file of sound or several")
        if self.output_dir is None:
            if self.overwrite:
                raise ValueError("--overwrite without --output-dir: there is nothing to overwrite")
            if self.format in SUBTITLES and len(self.audio) > 1:
                raise ValueError(
                    f"--format {self.format} of {len(self.audio)} files to standard output: give --output-dir DIR"
                )
            return []
        outputs = [self.output_dir / f"{path.stem}{FORMATS[self.format]}" for path in self.audio]
        for number, path in enumerate(outputs):
            if path in outputs[:number]:
                first = self.audio[outputs.index(path)]
                raise ValueError(f"{first} and {self.audio[number]} would both become {path}: run them separately")
            if path.exists() and not self.overwrite:
                raise ValueError(f"{path}: exists already; give another --output-dir, or --overwrite")
        self.output_dir.mkdir(parents=True, exist_ok=True)
        return outputs

    def _transcriber(self) -> "Transcriber":
        from paceline import speech

        options = speech.SpeechOptions(**self.speech.options())  # type: ignore[arg-type]
        if self.format in SUBTITLES:
            options = replace(options, return_timestamps=True)
        target = self.model.load()
        return speech.Transcriber(
            target,
            options=options,
            drafter=self.drafting.choose(target),
            verifier=self.drafting.verifier,
            num_draft_tokens=self.drafting.count,
            batch_size=self.batch_size,
        )


@final
class _Shown:
    """The transcripts so far: each is written to its file, or printed when those before it are."""

    def __init__(self, command: Transcribe, outputs: list[Path]) -> None:
        self.done: dict[int, Transcript] = {}
        self._command, self._outputs = command, outputs
        self._shown: set[int] = set()

    def add(self, number: int, transcript: "Transcript") -> None:
        """One has ended."""
        self.done[number] = transcript
        if self._outputs:
            self._show(number)
        while not self._outputs and len(self._shown) in self.done:
            self._show(len(self._shown))

    def rest(self) -> None:
        """Show those that an interruption left over."""
        for number in sorted(self.done.keys() - self._shown):
            self._show(number)

    def _show(self, number: int) -> None:
        from paceline.speech.writers import WRITERS

        transcript, name = self.done[number], self._command.format
        began = transcript.error is None or bool(transcript.segments)
        if self._outputs and began:
            self._outputs[number].write_text(WRITERS[name](transcript), encoding="utf-8", newline="\n")
        elif not self._outputs and (began or name == "json"):
            named = name == "text" and len(self._command.audio) > 1
            sys.stdout.write(f"{transcript.name}: " * named + WRITERS[name](transcript))
            sys.stdout.flush()
        self._shown.add(number)


def _summarise(done: "list[Transcript]", notes: Console, seconds: float) -> None:
    """A line below the output on a terminal: how fast it was, and how much was accepted."""
    sound = sum(one.seconds for one in done)
    counts = [one.summary for one in done if one.summary is not None]
    steps, emitted = sum(one.steps for one in counts), sum(one.emitted for one in counts)
    drafted, accepted = (sum(sum(getattr(one, name)) for one in counts) for name in ("drafted", "accepted"))
    line = f"{sound:.1f} s of sound in {seconds:.1f} s: {sound / seconds:.1f} times real time"
    line += f", {sum(one.encoder_seconds for one in done) / seconds:.0%} of it in the encoder"
    if steps:
        line += f"; {emitted / steps:.2f} tokens per step"
    if drafted:
        line += f", {accepted / drafted:.0%} of the drafted tokens accepted"
    notes.print(line, style="dim", soft_wrap=True)
