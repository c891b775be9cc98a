"""The tokens that a window's output begins after: start, language, task, and whether timestamps follow."""

from dataclasses import dataclass

from paceline.speech.checkpoint import TRANSCRIBE, Checkpoint, CheckpointError
from paceline.speech.options import SpeechOptions
from paceline.speech.transcript import Transcript

ENGLISH = ("en", "english", "<|en|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """``language`` is the token of a language that is known; ``detects`` says whether one is yet to be found."""

    start: int
    language: int | None
    task: int | None
    forced: tuple[int, ...]  # by a checkpoint without languages
    detects: bool

    def tokens(self, language: int | None, no_timestamps: int | None) -> tuple[int, ...]:
        """With the language that was found, and ``no_timestamps`` where none follow."""
        parts = (self.start, self.language if language is None else language, *self.forced, self.task, no_timestamps)
        return tuple(token for token in parts if token is not None)


def spoken_tokens(
    checkpoint: Checkpoint, options: SpeechOptions, transcript: Transcript
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """What the decoder read and said for a sound of one window without timestamps: the prompt, the output with the
    end-of-text token if it ended, and whether it did.
    """
    assert not transcript.has_timestamps
    start = read_start(checkpoint, options)
    found = None if transcript.language is None else checkpoint.languages[f"<|{transcript.language}|>"]
    prompt, output = start.tokens(found, checkpoint.no_timestamps), transcript.tokens
    room = checkpoint.positions - len(prompt)
    limit = room if options.max_new_tokens is None else min(options.max_new_tokens, room)
    ended = len(output) < limit
    return prompt, (*output, checkpoint.eos) if ended else output, ended


def read_start(checkpoint: Checkpoint, options: SpeechOptions) -> Start:
    """From the options and what the checkpoint has. Raises CheckpointError for a language or task that it lacks."""
    language = options.language
    if not checkpoint.multilingual:
        if options.task != TRANSCRIBE:
            raise CheckpointError(
                f"task={options.task!r}: {checkpoint.name} is for English alone; take a multilingual one"
            )
        if language is not None and language.lower() not in ENGLISH:
            raise CheckpointError(f"language={language!r}: {checkpoint.name} is for English alone; leave it out")
        forced = tuple(token for token in checkpoint.forced if token != checkpoint.no_timestamps)
        return Start(start=checkpoint.start, language=None, task=None, forced=forced, detects=False)
    if options.task not in checkpoint.tasks:
        raise CheckpointError(
            f"task={options.task!r}: {checkpoint.name} has no token for it in task_to_id of generation_config.json "
            f"(has: {', '.join(checkpoint.tasks) or 'none'}); take the file of the original checkpoint"
        )
    if language is None:
        own = checkpoint.defaults.get("language")
        language = own if isinstance(own, str) else None
    token = None if language is None else checkpoint.language_token(language)
    return Start(
        start=checkpoint.start,
        language=token,
        task=checkpoint.tasks[options.task],
        forced=(),
        detects=token is None and bool(checkpoint.languages),
    )
