"""Options of ``paceline score``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from paceline.cli.options import POSITIONAL, BatchSize, Json, LogLevel, ModelOptions, Quiet


@dataclass(frozen=True, slots=True)
class Score:
    """Compute the log-probability of continuations, or the perplexity of whole texts.

    Natural logarithms of the model's own distribution at temperature 1. A table on a terminal, JSON elsewhere. An
    invalid line fails alone.

    Examples:

        paceline score --model DIR "The capital of France is" " Paris"
        paceline score --model DIR --file pairs.jsonl > scores.jsonl
        paceline score --model DIR --text one.txt --text two.txt --stride 256
    """

    prompt: Annotated[str | None, POSITIONAL] = None
    """The prompt."""
    continuation: Annotated[str | None, POSITIONAL] = None
    """What is scored after it."""
    _: KW_ONLY
    model: ModelOptions
    batch_size: BatchSize = None
    file: Path | None = None
    """Lines of {"prompt": ..., "continuation": ...}, strings or token ids."""
    text: tuple[Path, ...] = ()
    """A text file whose perplexity is computed; may be repeated."""
    stride: int | None = None
    """With --text: tokens between windows over texts longer than the context; half of it by default."""
    json: Json = False
    quiet: Quiet = False
    log_level: LogLevel = None
