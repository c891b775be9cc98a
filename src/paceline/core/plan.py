"""Plans how much to draft in a step, from the results of earlier steps, never from the tokens of the planned step."""

from typing import Protocol

from paceline.core.step import StepPlan, StepResult


class Plan(Protocol):
    """Chooses the next step's shape."""

    @property
    def max_draft_tokens(self) -> int:
        """Largest ``num_draft_tokens`` it may ever choose; capacity is reserved for it."""
        ...

    def __call__(self) -> StepPlan: ...

    def observe(self, result: StepResult) -> None:
        """Take a step's result into account. Results come in order, at least one step late."""
        ...


class Fixed:
    """The same number of draft tokens every step. Raises ValueError below 0."""

    def __init__(self, num_draft_tokens: int) -> None:
        if num_draft_tokens < 0:
            raise ValueError(f"num_draft_tokens={num_draft_tokens}: give 0 (no drafting) or a positive count")
        self.step = StepPlan(num_draft_tokens)

    @property
    def max_draft_tokens(self) -> int:
        return self.step.num_draft_tokens

    def __call__(self) -> StepPlan:
        return self.step

    def observe(self, result: StepResult) -> None:
        """Results make no difference."""
