"""A drafter that fails costs its drafts, never the text: what it raises is logged, and decoding goes on plainly."""

import logging
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.models.base import Output

logger = logging.getLogger("paceline")
_only_recorded = ContextVar("only_recorded", default=False)


@contextmanager
def unguarded() -> Iterator[None]:
    """What drafters raise is the caller's: a step is recorded, not done, so that no text is at stake."""
    token = _only_recorded.set(True)
    try:
        yield
    finally:
        _only_recorded.reset(token)


@final
class Guarded(Drafter):
    """Another drafter until it raises; from then on the root alone, which every verifier takes.

    What ``start`` raises is the caller's: then nothing has been decoded yet.
    """

    origins: tuple[str, ...]
    draws: frozenset[Draw]

    def __init__(self, *, drafter: Drafter) -> None:
        self.drafter = drafter
        self.taps, self.num_reread, self.draws = drafter.taps, drafter.num_reread, drafter.draws
        self.origins, self.branches, self.accepts_other_tokens = (
            drafter.origins,
            drafter.branches,
            drafter.accepts_other_tokens,
        )
        self.error: Exception | None = None  # what it raised, once it has

    @property
    def slot_bytes(self) -> int:
        return self.drafter.slot_bytes

    @property
    def host_state(self) -> Hashable:
        inner = self.drafter.host_state if self.error is None else ()
        return None if inner is None else (self.error is None, inner)

    def resume(self, host_state: Hashable) -> None:
        """As the other one does, while it works."""
        assert isinstance(host_state, tuple)
        if self.error is None:
            self.drafter.resume(host_state[1])

    def max_nodes(self, num_draft_tokens: int) -> int:
        return self.drafter.max_nodes(num_draft_tokens)

    def start(self, context: DrafterContext) -> None:
        """As the other one does."""
        self.drafter.start(context)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """As the other one does, while it works."""
        if self.error is None:
            try:
                self.drafter.prefill(batch, admission, hidden)
            except Exception as error:
                self._give_up(error)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The other one's tree, or the root [B, 1]."""
        if self.error is None:
            try:
                return self.drafter.propose(batch, plan)
            except Exception as error:
                self._give_up(error)
        return Tree.make_chain(batch.root[:, None], batch.active[:, None], no_draft_reason=NoDraft.FAILED)

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """As the other one does, while it works."""
        if self.error is None:
            try:
                self.drafter.observe(batch, tree, outcome, output)
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if torch.compiler.is_compiling() or _only_recorded.get():
            raise error
        self.error = error
        kind = type(self.drafter).__name__
        logger.error("%s failed, decoding goes on without drafts: %s: %s", kind, type(error).__name__, error)
        logger.debug("where %s failed", kind, exc_info=error)
