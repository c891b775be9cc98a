"""Options of ``paceline generate``."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated

from paceline.cli.options import POSITIONAL, BatchSize, DraftOptions, ModelOptions, OutputOptions, PromptFile
from paceline.cli.sampling_options import SamplingOptions


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate from one prompt or a file of prompts. Drafting does not change the output.

    On a terminal the tokens are coloured by their source and a summary follows. Elsewhere only the text is printed.

    With --prompt-file each prompt gives one JSON line of --output, in order. An invalid prompt fails alone. After an
    interruption of any kind, the same command continues where it stopped.

    Examples:

        paceline generate --model DIR "def add(a, b):"
        paceline generate --model DIR --draft SMALL_DIR --stats "import os"
        paceline generate --model DIR --drafter ngram --temperature 0.8 --seed 7 -n 3 "x"
        paceline generate --model DIR --repetition-penalty 1.1 --logit-bias 42=-inf "x"
        paceline generate --model DIR --json-schema schema.json "A person:"
        paceline generate --model DIR --chat --system "Be brief." "Who wrote Faust?"
        paceline generate --model DIR --json < prompt.txt
        paceline generate --model DIR --prompt-file prompts.jsonl --output outputs.jsonl
    """

    prompt: Annotated[str | None, POSITIONAL] = None
    """The prompt; - or nothing reads standard input."""
    _: KW_ONLY
    model: ModelOptions
    batch_size: BatchSize = None
    drafting: DraftOptions = field(default_factory=DraftOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    prompt_file: PromptFile = None
    chat: bool = False
    """The prompt is a user message, or a JSON list of messages."""
    system: str | None = None
    """With --chat: the system message."""
