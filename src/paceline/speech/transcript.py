"""What a transcription gives: the text of a sound in segments, or the reason why there is none."""

from dataclasses import dataclass

from paceline.core.stats import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of text, with its time in seconds; its statistics are those of the window that it is from.

    ``no_speech_prob`` and ``avg_logprob`` (None) are known where a threshold asked for them.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]  # with timestamps
    temperature: float
    compression_ratio: float
    avg_logprob: float | None = None
    no_speech_prob: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The text of one sound. ``error`` says why there is none, or why it ends early."""

    name: str  # of the file, or the number of the array
    seconds: float  # of sound
    language: str | None  # code, as "en"; None for a checkpoint of English alone
    segments: tuple[Segment, ...]
    has_timestamps: bool  # whether segments end where the model said, or where windows do
    summary: Summary | None  # counts of steps and draft tokens, of all windows
    encoder_seconds: float = 0.0  # of the target's encoder, a share of it where several windows are encoded at once
    error: str | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(segment.text for segment in self.segments)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids of all segments, as transformers' ``generate`` gives them."""
        return tuple(token for segment in self.segments for token in segment.tokens)
