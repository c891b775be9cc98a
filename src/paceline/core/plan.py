"""Plans how much to draft in a step, from the results of earlier steps, never from the tokens of the planned step."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import final

from paceline.core.host_draft import HostDraft
from paceline.core.request import Request
from paceline.core.step import StepPlan, StepResult


class Plan(ABC):
    """Chooses the next step's shape."""

    @property
    @abstractmethod
    def max_draft_tokens(self) -> int:
        """Largest ``num_draft_tokens`` it may ever choose; capacity is reserved for it."""

    @property
    def considers(self) -> bool:
        """Whether it wants to know what may be copied in the next step."""
        return True

    def consider(self, offers: Mapping[int, Sequence[HostDraft]]) -> None:  # noqa: B027 - most plans know no copies
        """Take into account what may be copied in the next step, by row; asked for if the drafter copies."""

    @abstractmethod
    def __call__(self) -> StepPlan:
        """The next step's shape."""

    def drafts_for(
        self, rows: Sequence[int], requests: Sequence[Request], *, reread: int = 0, unread: int = 0, waiting: int = 0
    ) -> bool:
        """Whether ``requests`` that are about to begin in ``rows`` may have drafts that are made of the target's hidden
        states; else they never have one, and their drafter reads nothing of them.

        Asked where the drafter reads such states. If they may, it reads ``unread`` tokens of their prompts, and the
        target reads again ``reread`` tokens of one that it has in its cache, and of which the drafter has read nothing.
        ``waiting`` requests will join them.
        """
        return True

    def give_up(self) -> Collection[int]:
        """Rows whose requests have no draft from the planned step on, to their end; asked once for every step. Their
        drafter reads nothing more of them.
        """
        return ()

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:  # noqa: B027 - most plans do not ask for it
        """Take into account how long the drafter took to read the target's states of ``num_tokens`` of prompts."""

    def admit(  # noqa: B027 - most plans know no rows
        self, rows: Sequence[int], requests: Sequence[Request], *, waiting: int = 0
    ) -> None:
        """Take into account that ``requests`` begin in ``rows``; ``waiting`` others will soon join them."""

    @property
    def drafts_at_once(self) -> bool:
        """Whether the requests that were last admitted may have a draft as they begin; else drafters may read their
        prompts later.
        """
        return True

    def release(self, rows: Iterable[int]) -> None:  # noqa: B027 - as above
        """Take into account that the requests in ``rows`` have ended."""

    def observe(self, result: StepResult) -> None:  # noqa: B027 - results need not make a difference
        """Take a step's result into account. Results come in order, at least one step late."""


@final
class Fixed(Plan):
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
