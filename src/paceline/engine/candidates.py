"""Chooses among several drafters: a bandit whose arms are drafters, each with a controller of its own."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import inf, log, sqrt
from typing import final

from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import StepPlan, StepResult
from paceline.engine.controller import Controller
from paceline.engine.costs import DepthCost
from paceline.engine.watch import Speed

STRETCH = 8  # steps between two choices
FIRST_STRETCHES = 2  # of a drafter that nothing is known of
OPTIMISM = 0.6  # of the logarithm of the speed, for a drafter that was tried in one step
FORGET = 0.98  # of the steps in which a drafter was tried, with each choice: texts change
SWITCH = 1.03  # a drafter must promise so many times more than the one in use


@final
class CandidatePlan(Plan):
    """Plans by the controller of the drafter that promises most, by an upper confidence bound (UCB).

    Each of ``controllers`` decides how much its drafter drafts and learns what that costs and gains. The bound grows
    with the logarithm of the choices and falls with the steps that a drafter was tried in, so a drafter that seems
    worse is tried at growing intervals (as BanditSpec, 2505.15141, does with measured rewards; here they are the
    expected speed by each controller's own costs and acceptance, which need fewer steps). ``origins`` are those of each
    drafter, by which requests choose among them (none: they do not). Raises ValueError for fewer than two and for
    different draft lengths.
    """

    def __init__(self, controllers: Sequence[Controller], *, origins: Sequence[Collection[int]] = ()) -> None:
        if len(controllers) < 2 or len({one.max_draft_tokens for one in controllers}) > 1:
            raise ValueError(f"{len(controllers)} controllers: give at least 2, of one draft length")
        self.controllers, self._origins = tuple(controllers), tuple(origins)
        self._chosen, self._left = 0, 0  # and steps until the next choice
        self.steps_by_drafter = [0] * len(controllers)  # steps planned by each

    @property
    def max_draft_tokens(self) -> int:
        return self.controllers[0].max_draft_tokens

    @property
    def chosen(self) -> int:
        """The drafter of the next step."""
        return self._chosen

    @property
    def speed(self) -> Speed | None:
        """That of the controller with the most steps; None before enough of them."""
        return self._most_used.speed

    def costs(self) -> tuple[DepthCost, ...]:
        """What steps with the drafter that was used most cost and promise."""
        return self._most_used.costs()

    def admit(self, rows: Sequence[int], requests: Sequence[Request], *, waiting: int = 0) -> None:
        """New requests: the next step chooses anew."""
        for number, one in enumerate(self.controllers):
            allowed = [request.drafted_by(self._origins[number]) for request in requests] if self._origins else requests
            one.admit(rows, allowed, waiting=waiting)
        self._left = 0

    def release(self, rows: Iterable[int]) -> None:
        """Requests that ended."""
        rows = list(rows)
        for one in self.controllers:
            one.release(rows)

    def __call__(self) -> StepPlan:
        """The next step's shape and its drafter."""
        if self._left <= 0:
            self._choose()
        plan = self.controllers[self._chosen]()
        return replace(plan, drafter=self._chosen) if self._chosen else plan

    def observe(self, result: StepResult) -> None:
        """A plain step teaches all controllers, one with a draft that of its drafter alone."""
        self._left -= 1
        drafter = result.plan.drafter
        self.steps_by_drafter[drafter] += 1
        self.controllers[drafter].knowledge.num_tried += 1
        for number, one in enumerate(self.controllers):
            if number == drafter or result.plan.num_draft_tokens == 0:
                one.observe(result)
            else:
                one.stand_by(result)

    @property
    def _most_used(self) -> Controller:
        return self.controllers[self.steps_by_drafter.index(max(self.steps_by_drafter))]

    @property
    def outlook(self) -> float:
        """What the drafter in use promises."""
        return self.controllers[self._chosen].outlook

    def stand_by(self, result: StepResult) -> None:
        """Another drafter than these drafted in the step."""
        for one in self.controllers:
            one.stand_by(result)

    def _choose(self) -> None:
        """The drafter of the highest bound, for the next stretch."""
        known = [one.knowledge for one in self.controllers]
        self._left = STRETCH
        able = [any(state.most for state in one.rows.values()) for one in self.controllers]
        untried = [number for number, one in enumerate(known) if one.num_tried < 1 and able[number]]
        if untried:
            self._chosen, self._left = untried[0], FIRST_STRETCHES * STRETCH
            self.controllers[self._chosen].take_over()
            return
        for one in known:
            one.num_tried = max(1.0, FORGET * one.num_tried)
        total = log(1 + sum(one.num_tried for one in known))
        bounds = [
            log(controller.promise()) + OPTIMISM * sqrt(total / one.num_tried) if may_draft else -inf
            for controller, one, may_draft in zip(self.controllers, known, able, strict=True)
        ]
        best = max(range(len(bounds)), key=bounds.__getitem__)
        if bounds[best] > bounds[self._chosen] + log(SWITCH):
            self._chosen = best
            self.controllers[best].take_over()
