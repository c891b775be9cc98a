"""The options of a transcription, named and meant as in transformers' Whisper ``generate``."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from paceline.speech.checkpoint import TASKS, TRANSCRIBE

PROMPT_PLACES = ("first-segment", "all-segments")
MAX_NEW_TOKENS = 256  # per window, as in transformers' pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """How sound becomes text. Raises ValueError for values out of range, and for options that need one another.

    - ``language`` (None): a name or code; None is the checkpoint's own, or detected for every file.
    - ``task`` ("transcribe"): or "translate", into English.
    - ``return_timestamps`` (None): whether timestamps are generated; None: for sounds longer than one window, which
      need them.
    - ``prompt`` (None): a text that stands before what is said, for names and style; ``prompt_condition_type``:
      before the "first-segment" or before "all-segments".
    - ``condition_on_prev_tokens`` (None): whether a window's prompt has the text before it; None is the checkpoint's
      own, or no.
    - ``temperature`` (0): 0 is greedy. Several, rising: each is tried where the one before fails a threshold.
    - ``compression_ratio_threshold`` (None): the text of a window that zlib shortens more than this has failed.
    - ``logprob_threshold`` (None): one whose tokens have a lower mean log-probability has failed.
    - ``no_speech_threshold`` (None): a window that has failed ``logprob_threshold`` is skipped where the model finds
      it likelier than this to hold no speech.
    - ``max_new_tokens`` (256): of a window; None is as many as the checkpoint's max_length allows.
    - ``seed`` (0): of the noise at temperatures above 0.
    """

    language: str | None = None
    task: str = TRANSCRIBE
    return_timestamps: bool | None = None
    prompt: str | None = None
    prompt_condition_type: str = PROMPT_PLACES[0]
    condition_on_prev_tokens: bool | None = None
    temperature: float | Sequence[float] = 0.0
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    max_new_tokens: int | None = MAX_NEW_TOKENS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task={self.task!r}: give one of {', '.join(TASKS)}")
        if self.prompt_condition_type not in PROMPT_PLACES:
            raise ValueError(
                f"prompt_condition_type={self.prompt_condition_type!r}: give one of {', '.join(PROMPT_PLACES)}"
            )
        if self.prompt_condition_type == PROMPT_PLACES[1] and not self.condition_on_prev_tokens:
            raise ValueError("prompt_condition_type='all-segments' needs condition_on_prev_tokens=True: give both")
        if not self.temperatures or any(not isfinite(one) or one < 0 for one in self.temperatures):
            raise ValueError(f"temperature={self.temperature!r}: give one or several numbers of at least 0")
        if list(self.temperatures) != sorted(self.temperatures):
            raise ValueError(f"temperature={self.temperature!r}: give several in rising order, 0 first")
        if len(self.temperatures) > 1 and self.compression_ratio_threshold is None and self.logprob_threshold is None:
            raise ValueError(
                f"temperature={self.temperature!r} without a threshold: only the first would be used; give "
                "compression_ratio_threshold or logprob_threshold too"
            )
        if self.no_speech_threshold is not None and self.logprob_threshold is None:
            raise ValueError(
                f"no_speech_threshold={self.no_speech_threshold} without logprob_threshold: windows are skipped only "
                "where both are missed; give both"
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: give at least 1, or None")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed={self.seed}: give an integer from 0 to 2**63 - 1")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """``temperature`` as several."""
        given = self.temperature
        return tuple(given) if isinstance(given, Sequence) else (given,)
