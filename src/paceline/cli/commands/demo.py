"""Options of ``paceline demo``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from paceline.cli.options import AT_LEAST_1


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Compare speculative with plain decoding on a small model, in less than a minute.

    Decodes several Python prompts twice, plainly and with a draft model. The second run is shown as it is generated,
    every token coloured by its source; then both runs are compared token for token, and timed.

    Exits with 1 if any token differs. Without colour, marks under the text show the source of each token.

    Examples:

        paceline demo
        paceline demo --target MODEL_DIR --draft DRAFT_DIR
        NO_COLOR=1 paceline demo
    """

    target: Path | None = None
    """Target model directory instead of the embedded one."""
    draft: Path | None = None
    """Draft model directory instead of the embedded one."""
    head: tuple[Path, ...] = ()
    """Draft head of the target, to be timed too; may be repeated."""
    num_draft_tokens: Annotated[int, AT_LEAST_1] = 5
    """Tokens drafted per step."""
    max_tokens: Annotated[int, AT_LEAST_1] = 96
    """Tokens generated per prompt."""
    threads: Annotated[int, AT_LEAST_1] = 1
    """CPU threads; the embedded models are too small for more than one."""
