"""The options of ``paceline transcribe`` that say how sound becomes text. Loads no torch."""

from dataclasses import dataclass, fields
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.cli.options import one_of

SPEECH = Group("Speech", sort_key=3)
TASKS = ("transcribe", "translate")
PROMPT_PLACES = ("first-segment", "all-segments")


@Parameter(name="*", group=SPEECH)
@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """Every field is one of ``paceline.SpeechOptions``, with the same default."""

    language: str | None = None
    """What is spoken: a name or a code, such as german or de; by default the checkpoint's own, or detected."""
    task: Annotated[str, one_of(TASKS)] = TASKS[0]
    """transcribe, or translate into English."""
    return_timestamps: bool | None = None
    """Generate timestamps also for sounds of one window; subtitles and longer sounds have them anyway."""
    prompt: str | None = None
    """Text that stands before what is said, for names and style."""
    prompt_condition_type: Annotated[str, one_of(PROMPT_PLACES)] = PROMPT_PLACES[0]
    """Where --prompt stands: first-segment, or all-segments."""
    condition_on_prev_tokens: bool | None = None
    """Give the model the text so far before every window; by default as the checkpoint says."""
    temperature: tuple[float, ...] = (0.0,)
    """0 is greedy. Repeated, rising: each is tried where the one before failed a threshold."""
    compression_ratio_threshold: float | None = None
    """A window whose text compresses more than this has failed; 1.35 finds repetitions."""
    logprob_threshold: float | None = None
    """A window with a lower mean log-probability has failed; -1 is usual."""
    no_speech_threshold: float | None = None
    """A window that failed --logprob-threshold is skipped if it is likelier than this to hold no speech."""
    max_new_tokens: int | None = 256
    """Most tokens of a window."""
    seed: int = 0
    """The same seed gives the same text at temperatures above 0."""

    def options(self) -> dict[str, object]:
        """Arguments of ``paceline.SpeechOptions``."""
        return {one.name: getattr(self, one.name) for one in fields(self)}
