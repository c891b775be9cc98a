"""What one step did for one output: the draft as it was proposed, what was accepted of it, and what it took."""

from dataclasses import dataclass

from paceline.core.step import PhaseSeconds
from paceline.core.step_drafts import DraftTree
from paceline.engine.watch import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one output.

    ``draft.path`` holds the nodes whose tokens the output kept, in order; of the tokens of the step these come first,
    and at most one follows them, which the target chose.
    """

    number: int  # of the output's steps, from 1
    tokens: tuple[int, ...]  # that the output gained
    draft: DraftTree
    drafters: tuple[str | None, ...]  # that proposed each node; None for the root
    no_draft: str | None  # why nothing was drafted; None where something was
    seconds: PhaseSeconds  # of the whole step, which the outputs of a batch share
    num_rows: int  # outputs that took part in it
    speed: Speed | None = None  # of the whole batch so far, drafted and plain; None before it was measured
