"""An imagined machine that a plan's steps run on: what they take, and what is accepted, without a model."""

import random
from bisect import bisect_right
from dataclasses import replace

from paceline.core.step import Finish, PhaseSeconds, StepResult
from paceline.core.tree import NoDraft
from tests.harness import request

PLAIN = 0.01  # seconds of a plain step of one row
PROMPT = 100  # tokens of a prompt that a draft head reads


class Machine:
    """Steps of ``rows`` requests under ``plan``.

    ``growth`` is what each further node adds to a forward, ``draft`` what each drafted token takes, and ``missed`` what
    a drafter takes to read one that it missed, in plain steps; of several drafters, one for each. ``draft_growth`` is
    what a further row adds to a drafted token. ``noise`` spreads times, and one step in ``disturbed`` takes five times
    as long. ``search`` is what a drafter takes, in plain steps, where the plan lets it search. ``ready`` (None: the
    plan is not asked) is what a step takes more, after its forward, if rows are not plain, likewise; the target would
    read ``reread`` tokens again. They begin ``reading`` plain steps later. ``lasts``: requests do not end before their
    last token, which the plan may know; ``drafters`` are those that they choose.
    """

    def __init__(
        self,
        plan,
        *,
        rows=1,
        growth=0.05,
        draft=0.05,
        draft_growth=0.0,
        missed=0.0,
        unverified=0,
        noise=0.0,
        disturbed=None,
        seed=0,
        slowdown=None,
        search=0.0,
        ready=None,
        reread=0,
        reading=0.0,
        lasts=False,
        drafters=None,
    ):
        self.plan, self.rows, self.growth, self.draft_growth = plan, rows, growth, draft_growth
        self.draft, self.missed = draft if isinstance(draft, list) else [draft], missed
        self.search, self.num_searches = search, 0
        self.ready, self.reread, self.kept = ready, reread, []  # of each request of the first row, whether it is ready
        self.reading = reading * PLAIN
        self.stop_tokens, self.drafters = [] if lasts else [0], drafters
        self.by_drafter = [0] * len(self.draft)  # steps with a draft
        self.unverified = unverified  # nodes beside each row's draft
        self.noise, self.disturbed, self.slowdown = noise, disturbed, slowdown or (lambda position: 1.0)
        self.random = random.Random(seed)
        self.seconds = self.tokens = self.plain_seconds = 0
        self.depths = [[] for _ in range(rows)]  # planned for each token's step, by token
        self.lag = [[0] * rows for _ in self.draft]

    def step_seconds(self, nodes, drafting=0.0):
        return PLAIN * (1 + self.growth * (nodes - 1) + drafting)

    def serve(self, accepts, *, num_tokens, requests=1):
        """Requests one after another in every row; ``accepts(row, position)`` is the chance to be accepted there, of
        several drafters a list of these.
        """
        accepts = accepts if isinstance(accepts, list) else [accepts]
        for _ in range(requests):
            one = replace(request([1], max_tokens=num_tokens, stop_tokens=self.stop_tokens), drafters=self.drafters)
            admitted = range(self.rows), [one] * self.rows
            if self.ready is not None:
                self.kept.append(self.plan.drafts_for(*admitted, reread=self.reread, unread=PROMPT))
            self.plan.admit(*admitted)
            self.given_up = set()
            if self.reading and self.kept[-1]:
                self.seconds += self.reading
                self.plan.observe_prefill(PROMPT, self.reading)
            length, self.lag = [0] * self.rows, [[0] * self.rows for _ in self.draft]
            while min(length) < num_tokens:
                running = [row for row in range(self.rows) if length[row] < num_tokens]
                self._step(accepts, length, num_tokens)
                self.plan.release([row for row in running if length[row] >= num_tokens])
        return self

    def _step(self, accepts, length, num_tokens):
        plan = self.plan()
        self.given_up.update(self.plan.give_up())
        running = [row for row in range(self.rows) if length[row] < num_tokens]
        depths = [
            min(plan.depth_of(row), num_tokens - length[row] - 1) if row in running else 0 for row in range(self.rows)
        ]
        accepted = [0] * self.rows
        for row in running:
            chance = accepts[plan.drafter]
            while accepted[row] < depths[row] and self.random.random() < chance(row, length[row] + accepted[row]):
                accepted[row] += 1
        missed = sum(self.lag[plan.drafter][row] for row in running if depths[row])
        self.by_drafter[plan.drafter] += max(depths) > 0
        factor = self.slowdown(min(length)) * (1 + self.noise * abs(self.random.gauss(0, 1)))
        if self.disturbed and self.random.random() < 1 / self.disturbed:
            factor *= 5
        forwards = max(depths) + self.draft_growth * (sum(depths) - max(depths))
        drafting = self.draft[plan.drafter] * forwards + self.missed * missed
        ready = bool(self.kept and self.kept[-1]) and not self.given_up.issuperset(running)
        assert not max(depths) or not self.kept or ready, "a plain request has no draft"
        reading = self.ready * factor * self.step_seconds(len(running)) if ready else 0.0
        seconds = reading + factor * self.step_seconds(
            len(running) + sum(depths) + self.unverified * sum(map(bool, depths)), drafting
        )
        drafting *= factor * PLAIN
        target = seconds - reading - drafting
        searching = factor * PLAIN * self.search if plan.searches and max(depths) else 0.0
        self.num_searches += searching > 0
        self.seconds += seconds + searching
        plain = self.step_seconds(len(running)) * self.slowdown(min(length))
        tokens = [[0] * (accepted[row] + 1) if row in running else [] for row in range(self.rows)]
        for row in running:
            self.depths[row] += [depths[row]] * len(tokens[row])
            for drafter, lag in enumerate(self.lag):
                lag[row] = 0 if drafter == plan.drafter and depths[row] else lag[row] + len(tokens[row])
            length[row] += len(tokens[row])
        gained = sum(map(len, tokens))
        self.tokens += gained
        self.plain_seconds += plain * gained / len(running)
        self.plan.observe(
            StepResult(
                plan=plan,
                tokens=tokens,
                num_accepted=accepted,
                num_drafted=depths,
                finish=[Finish.LENGTH if length[row] >= num_tokens else Finish.RUNNING for row in range(self.rows)],
                bonus=[False] * self.rows,
                confidence=[0] * self.rows,
                no_draft=[NoDraft.DRAFTED if depth else NoDraft.OFF for depth in depths],
                origins=tokens,
                logprobs=[[]] * self.rows,
                seconds=PhaseSeconds(
                    draft=searching + drafting,
                    score=0.85 * target,
                    decide=reading + 0.1 * target,
                    rest=0.05 * target,
                    search=searching,
                ),
            )
        )

    @property
    def speedup(self):
        """Over plain decoding without noise, which is what the plan may not fall below."""
        return self.plain_seconds / self.seconds


def reads(costs, cost):
    """The most missed tokens that a drafter reads at this cost."""
    return bisect_right(range(100_000), cost, key=costs.catching_up) - 1
