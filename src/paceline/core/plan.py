"""How much to draft in a step. Decided from past statistics only, never from the tokens of the step it plans."""

from dataclasses import dataclass
from typing import Protocol

from paceline.core.stats import Stats


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Static shape of one step: at most ``num_draft_tokens`` tokens deep."""

    num_draft_tokens: int


class Plan(Protocol):
    """Chooses the next step's shape."""

    @property
    def max_draft_tokens(self) -> int:
        """Largest ``num_draft_tokens`` it may ever choose; capacity is reserved for it."""
        ...

    def __call__(self, stats: Stats) -> StepPlan: ...


class Fixed:
    """The same number of draft tokens every step. Raises ValueError below 0."""

    def __init__(self, num_draft_tokens: int) -> None:
        if num_draft_tokens < 0:
            raise ValueError(f"num_draft_tokens={num_draft_tokens}: give 0 (no drafting) or a positive count")
        self.step = StepPlan(num_draft_tokens)

    @property
    def max_draft_tokens(self) -> int:
        return self.step.num_draft_tokens

    def __call__(self, stats: Stats) -> StepPlan:
        return self.step
