"""Several drafters of which one drafts in each step; a plan chooses which.

B rows, N nodes.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import final

from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.context import Context
from paceline.core.host_draft import HostDraft
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Tree, join_rows
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter, DrafterContext


@final
class CandidateDrafters(Drafter):
    """``drafters``, of which ``plan.drafter`` drafts; the others stand by, and catch up when it is their turn.

    Where the plan says so, the first copies in some rows of the same step, and the one that drafts skips these; it must
    be one that ``joins``. Each draws its tokens in the way that the verifier likes best of those it can. Raises
    ValueError for fewer than two.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if len(drafters) < 2:
            raise ValueError(f"{len(drafters)} candidate drafters: give at least 2, or the drafter itself")
        self.drafters = tuple(drafters)
        self.taps = tuple(sorted({tap for one in drafters for tap in one.taps}))
        last_states = [one.last_states for one in drafters if one.taps]
        self.last_states = None if None in last_states else max(filter(None, last_states), default=None)
        self.num_reread = max(one.num_reread for one in drafters)
        self.num_reread_of_prefix = max(one.num_reread_of_prefix for one in drafters)
        self.origins = tuple(origin for one in drafters for origin in one.origins)
        self.draws = frozenset[Draw]().union(*(one.draws for one in drafters))
        self.branches = any(one.branches for one in drafters)
        self.ends_early = any(one.ends_early for one in drafters)
        self.copies = drafters[0].copies
        self.on_host = any(one.on_host for one in drafters)
        self.needs_same_tokens = any(one.needs_same_tokens for one in drafters)
        self.accepts_other_tokens = all(one.accepts_other_tokens for one in drafters)
        self.num_search_nodes = max(one.num_search_nodes for one in drafters)
        self.num_extra_rows = sum(one.num_extra_rows for one in drafters)
        counts = [len(one.origins) for one in drafters]
        self._first_origin = [sum(counts[:at]) for at in range(len(counts))]
        self._chosen = self._num_copied = 0
        self._proposed: tuple[Tree, Tree, Tensor] | None = None  # what was joined, and the rows that copy

    @property
    def slot_bytes(self) -> int:
        return sum(one.slot_bytes for one in self.drafters)

    @property
    def context_bytes(self) -> int:
        return sum(one.context_bytes for one in self.drafters)

    def check_context(self, context: Context) -> None:
        for one in self.drafters:
            one.check_context(context)

    @property
    def host_state(self) -> Hashable:
        states = tuple(one.host_state for one in self.drafters)
        return None if None in states else (self._chosen, self._num_copied, states)

    def numbers_of(self, drafter: Drafter) -> range:
        """Those of one of the drafters in ``origins``."""
        first = self._first_origin[self.drafters.index(drafter)]
        return range(first, first + len(drafter.origins))

    def max_nodes(self, num_draft_tokens: int) -> int:
        return max(one.max_nodes(num_draft_tokens) for one in self.drafters)

    def start(self, context: DrafterContext) -> None:
        """Start all of them. Raises ValueError for a target or a verifier that one of them cannot serve."""
        chosen = [next((draw for draw in context.wants if draw in one.draws), None) for one in self.drafters]
        for one, draw in zip(self.drafters, chosen, strict=True):
            if draw is None:
                have, want = (" or ".join(draw.words for draw in draws) for draws in (sorted(one.draws), context.wants))
                raise ValueError(
                    f"the drafter {DRAFTERS.name_of(type(one))!r} drafts tokens that are {have}, and the verifier "
                    f"takes only those that are {want}: leave this drafter out, or give the verifier 'coupled'"
                )
            one.start(replace(context, draw=draw))

    def offers(self, batch: Batch, num_draft_tokens: int) -> Mapping[int, Sequence[HostDraft]]:
        """Those of the first, which alone may copy."""
        return self.drafters[0].offers(batch, num_draft_tokens)

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Prepare the one that drafts, and the one that copies beside it; the others miss the step."""
        self._chosen, self._num_copied = plan.drafter, plan.num_copied
        for number, one in enumerate(self.drafters):
            if number == plan.drafter or plan.num_draft_tokens == 0:
                one.begin_step(batch, plan)
            elif number == 0 and plan.num_copied:
                one.begin_step(batch, _copies_of(plan))
            else:
                one.stand_by(batch, 1 + plan.max_depth)

    def resume(self, host_state: Hashable) -> None:
        """Give each its own state."""
        assert isinstance(host_state, tuple)
        self._chosen, self._num_copied, states = host_state
        for one, state in zip(self.drafters, states, strict=True):
            one.resume(state)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Every drafter reads the prompts."""
        for one in self.drafters:
            one.prefill(batch, admission, {tap: hidden[tap] for tap in one.taps if tap in hidden})

    def release(self, batch: Batch, rows: Sequence[int]) -> None:
        """To all of them."""
        for one in self.drafters:
            one.release(batch, rows)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The tree of the drafter that the plan chose, and in rows that copy their copies."""
        tree, first = self.drafters[plan.drafter].propose(batch, plan), self._first_origin[plan.drafter]
        named = replace(tree, origin=tree.origin + first) if first else tree
        if not plan.num_copied:
            return named
        copies = self.drafters[0].propose(batch, _copies_of(plan))
        copied = copies.valid[:, 1:].any(1)
        joined = join_rows(copied, copies, named)
        self._proposed = joined, tree, copied
        return joined

    def observe_unverified(self, tree: Tree, likeliest: Tensor) -> None:
        """To the one that drafted."""
        self.drafters[self._chosen].observe_unverified(tree, likeliest)

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """To the one that drafted, and to those that read the target's hidden states in every step."""
        for number, one in enumerate(self.drafters):
            if one.taps:
                if hidden:  # else it has read nothing of any row, and only copies are drafted
                    one.observe(batch, tree, outcome, {tap: hidden[tap] for tap in one.taps})
            elif number == self._chosen and self._num_copied:
                one.observe(batch, *self._own_part(tree, outcome), {})
            elif tree.max_depth and (number == self._chosen or (number == 0 and self._num_copied)):
                one.observe(batch, tree, outcome, {})

    def _own_part(self, tree: Tree, outcome: Outcome) -> tuple[Tree, Outcome]:
        """What became of the drafts beside copies: rows that copied gain nothing, as far as their drafter sees."""
        assert self._proposed is not None
        joined, own, copied = self._proposed
        path = outcome.path.masked_fill(copied[:, None], -1)
        if tree is joined:
            path = path[:, : own.max_depth]
        else:  # other tokens were verified, maybe more of them
            tokens, valid = tree.tokens[:, : own.num_nodes], tree.valid[:, : own.num_nodes] & ~copied[:, None]
            own = replace(own, tokens=tokens, valid=valid, max_depth=tree.max_depth)
        return own, replace(outcome, path=path, num_committed=outcome.num_committed.masked_fill(copied, 0))


def _copies_of(plan: StepPlan) -> StepPlan:
    """The part of a plan that the drafter of copies sees."""
    return StepPlan(plan.num_copied, copies=plan.copies)
