"""The plan of drafters that copy: of the copies on offer, those that are worth their cost."""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from paceline.core.host_draft import HostDraft
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import StepPlan, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.copies import NONE, SWITCH, CopyChoice, CopyRow, choose_copies
from paceline.engine.costs import StepWork
from paceline.engine.curve import DISTURBED, WARM
from paceline.engine.knowledge import Knowledge
from paceline.engine.watch import Speed, SpeedCount

MAX_COPIED_TOKENS = 32
SIZES = (1, 2, 4, 8, 16, MAX_COPIED_TOKENS)  # lengths of recorded steps
SAMPLE = 4  # one of so many steps of a known cost is looked at for it
ENOUGH = 16  # steps before a speed is told
CHEAP = 0.02  # of a step: looking for copies that takes no more is done in every step
PATIENCE = 4  # steps without a copy that is worth it until looking pauses
REST, LONGEST_REST = 3, 15  # steps that it pauses for, at first and at most
FOLLOW = 0.3  # rate at which what looking and copying take is followed
FIRST = 0.5  # of a step: copying takes at most so much more than looking, the first time it is measured
FORGET = 0.99  # of what copying takes, with each step that only looked
NO_MATCH, SLOWER = StepPlan(0, off=NoDraft.NO_MATCH), StepPlan(0, off=NoDraft.SLOWER)  # steps that verify no copy


@final
class CopyPlan(Plan):
    """Verifies of the copies on offer what is worth its cost, in every one of ``rows`` rows and every step.

    ``knowledge`` is of the costs and of what copies were accepted. Without ``timed`` no clock and no other row matters.
    ``sizes`` keeps the steps' shapes few, for those that are recorded. Where looking for copies takes a noticeable part
    of a step and none was worth it for some steps, it pauses for the next few.
    """

    def __init__(
        self,
        *,
        rows: int,
        knowledge: Knowledge,
        timed: bool,
        sizes: bool = False,
        max_draft_tokens: int = MAX_COPIED_TOKENS,
    ) -> None:
        self.knowledge, self._timed, self._sizes, self._max = knowledge, timed, sizes, max_draft_tokens
        self.size = rows
        self._rows: dict[int, CopyRow] = {}
        self._offers: Mapping[int, Sequence[HostDraft]] = {}
        self._allowed: dict[int, frozenset[int]] = {}  # origins of copies, of rows that chose
        self._asked = False  # whether copies were looked for in this step
        self._idle = self._rested = 0  # steps without a copy that was worth it, and since copies were looked for
        self._rest = REST
        # Seconds of a step that looked for copies and verified none, for that, and to draft in one that verified some.
        self._step = self._looking = self._copying = 0.0
        self._steps = self._learnt = 0  # steps of its own, and those that it learnt from
        self._count = SpeedCount()

    @property
    def max_draft_tokens(self) -> int:
        return self._max

    def admit(self, rows: Sequence[int], requests: Sequence[Request], *, waiting: int = 0) -> None:
        """New requests: their copies are expected to be like those of others."""
        for row, request in zip(rows, requests, strict=True):
            most = self._max if request.num_draft_tokens is None else min(self._max, request.num_draft_tokens)
            known = self.knowledge.sampled if request.sampling.temperature else self.knowledge.greedy
            self._rows[row] = CopyRow(rates=known.copies, most=most)
            if request.drafters is not None:
                self._allowed[row] = request.drafters
        self._idle = 0

    def release(self, rows: Iterable[int]) -> None:
        """Requests that ended."""
        for row in rows:
            self._rows.pop(row, None)
            self._allowed.pop(row, None)

    @property
    def considers(self) -> bool:
        return not self._timed or self._share < CHEAP or self._idle < PATIENCE or self._rested >= self._rest

    @property
    def _share(self) -> float:
        """Of a step, that looking for copies takes."""
        return self._looking / self._step if self._step else 0.0

    def consider(self, offers: Mapping[int, Sequence[HostDraft]]) -> None:
        """What may be copied in the next step."""
        self._offers, self._asked = offers, True
        if self._allowed:
            self._offers = {
                row: [one for one in several if one.origin in self._allowed.get(row, (one.origin,))]
                for row, several in offers.items()
            }

    def choose(self) -> CopyChoice:
        """The copies that are worth verifying."""
        self._rested = 0 if self._asked else self._rested + 1
        if not self._asked:
            return NONE
        rows, costs, offers = self._rows, self.knowledge.costs, self._offers
        if self._timed:
            fixed = max(0.0, self._copying - self._looking) / costs.level if self._looking and costs.level else 0.0
            choice = choose_copies(offers, rows, costs, running=len(rows), fixed=fixed) if offers else NONE
            worth = choice.drafts and choice.speedup * (1 - self._share) > SWITCH
            self._idle = 0 if worth else self._idle + 1
            self._rest = min(LONGEST_REST, 2 * self._rest + 1) if self._idle > PATIENCE else REST
            return choice
        drafts, promised = dict[int, HostDraft](), dict[int, float]()
        for row, several in offers.items():
            choice = choose_copies({row: several}, rows, costs, running=1)
            drafts |= choice.drafts
            promised |= choice.promised
        return CopyChoice(drafts, promised, 1.0)

    def __call__(self) -> StepPlan:
        """The next step's shape."""
        return self.plan_for(self.choose())

    def plan_for(self, choice: CopyChoice) -> StepPlan:
        """The shape of a step that verifies what was chosen."""
        if not choice.drafts:
            return NO_MATCH if self._asked and not self._offers else SLOWER
        deepest = self.depth_for(choice.drafts.values())
        depths = [deepest] * self.size  # rows with nothing on offer say that nothing matches
        for row, several in self._offers.items():
            if several:
                depths[row] = len(choice.drafts[row].tokens) if row in choice.drafts else 0
        return StepPlan(deepest, tuple(depths), off=NoDraft.SLOWER, copies=choice.drafts)

    def depth_for(self, drafts: Iterable[HostDraft]) -> int:
        """How deep a tree of chains is that holds ``drafts``."""
        deepest = max(len(draft.tokens) for draft in drafts)
        return min(self._max, next(size for size in SIZES if size >= deepest)) if self._sizes else deepest

    @property
    def num_running(self) -> int:
        """Requests."""
        return len(self._rows)

    def observe(self, result: StepResult) -> None:
        """Learn what the step cost, and from its tokens which copies were right."""
        self.note_drafting(result)
        self.learn(result)
        num_running, costs = result.num_running, self.knowledge.costs
        if not num_running:
            return
        nodes = num_running + sum(result.num_drafted)
        if self._timed and (self._steps % SAMPLE == 0 or costs.score.measured(nodes, num_running - 1) < WARM):
            costs.observe(StepWork(num_running, nodes), result.seconds)
        self._steps += 1
        plain = result.seconds.total
        if nodes > num_running:
            plain = costs.of(num_running, num_running) * costs.level * result.num_tokens / num_running
        self._count.add(result.num_tokens, result.seconds.total, plain_seconds=plain)

    def note_drafting(self, result: StepResult) -> None:
        """Follow what looking for copies takes, and what verifying some takes beside the forward."""
        taken = result.seconds
        if not self._asked or not taken.total:
            return
        if result.plan.copies is not None:
            known = self._copying or min(taken.draft, self._looking + FIRST * self._step)
            self._copying = _followed(known, taken.draft)
        elif not result.plan.num_draft_tokens:
            self._looking, self._step = _followed(self._looking, taken.draft), _followed(self._step, taken.total)
            self._copying *= FORGET  # so that one slow step does not keep from copies for good

    def learn(self, result: StepResult) -> None:
        """Learn from the tokens of a step which of the copies on offer were right, submitted or not.

        Where the host's work is a noticeable part of a step, those beside submitted ones teach in some steps alone.
        """
        verified, self._learnt = result.plan.copies or {}, self._learnt + 1
        whole = not self._timed or self._share < CHEAP or self._idle or self._learnt % SAMPLE == 0
        for row, several in self._offers.items():
            state = self._rows.get(row)
            if state is not None and result.tokens[row] and (whole or row in verified):
                for draft in several:
                    state.learn(draft, result.tokens[row], shared=self._timed)
        self._offers, self._asked = {}, False

    @property
    def speed(self) -> Speed | None:
        """Tokens per second so far, and what plain decoding would have given; None before enough steps."""
        return self._count.speed if self._steps >= ENOUGH else None


def _followed(known: float, seconds: float) -> float:
    """What is known of a time, after it was measured to be ``seconds``."""
    return known + FOLLOW * (min(seconds, DISTURBED * known) - known) if known else seconds
