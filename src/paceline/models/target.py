"""The target of a decoder: an LM with its cache, and what makes scores of its logits.

R rows, N nodes, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, final

from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.guidance import GuidanceState
from paceline.core.scores import Scores, TokenMask
from paceline.core.tree import Outcome, Tree
from paceline.models.base import LM, LogitsFor
from paceline.models.guided import GuidedLM
from paceline.models.prefill import Prefill

OnLogits: TypeAlias = Callable[[Tensor], None]


class TokenMasks(Protocol):
    """Constraints that the host applies (constraints/host)."""

    def mask(self, tree: Tree, logits: Tensor) -> tuple[Tensor, TokenMask | None]: ...


@final
class Target:
    """Scores trees by ``lm``: its forward, guidance, then logits processors, then token masks.

    ``guidance`` (None: no row can be guided) is the state of R rows. Only ``commit`` moves the cache.
    """

    def __init__(
        self,
        *,
        lm: LM,
        rows: int,
        capacity: int,
        constraints: TokenMasks,
        guidance: GuidanceState | None = None,
    ) -> None:
        self.unguided, self._constraints = lm, constraints
        self.lm: LM = lm
        if guidance is None:
            self.cache: View = lm.new_cache(rows, capacity).view()
        else:
            self.lm = guided = GuidedLM(lm, guidance)
            self.cache = guided.new_view(rows, capacity)

    def begin(
        self,
        admission: Admission,
        tokens: Tensor,
        on_logits: OnLogits | None,
        chunk: int,
        taps: Sequence[int],
        last_states: int | None = None,
    ) -> Prefill:
        """Admit rows to the cache; what reads the rest of their prompts ``tokens`` [B, T], and keeps ``taps``, of each
        row's last ``last_states`` tokens at least (None: of all).
        """
        return Prefill(
            self.unguided,
            self.lm.admit(self.cache, admission),
            tokens,
            admission.known,
            admission.unread,
            taps=taps,
            last_states=last_states,
            on_logits=on_logits,
            chunk=chunk,
        )

    def score(self, tree: Tree, batch: Batch, taps: Sequence[int]) -> Scores:
        """One forward over all nodes of ``tree``, in all rows, and over those that are not verified."""
        output = self.lm(tree.scored, self.cache, taps=taps, logits_for=LogitsFor.ALL, resume=tree.resume)
        assert output.logits is not None
        unverified = None
        if tree.unverified is not None:
            unverified = batch.argmax(output.logits[:, tree.num_nodes :])
            output = output.first(tree.num_nodes)
            assert output.logits is not None
        logits, mask = self._constraints.mask(tree, batch.process_tree(output.logits, tree))
        raw = output.logits if output.conditional is None else output.conditional
        return Scores(logits=logits, raw_logits=raw, hidden=output.hidden, mask=mask, unverified=unverified)

    def commit(self, tree: Tree, outcome: Outcome) -> None:
        """Keep the root and the accepted nodes in the cache."""
        self.cache.commit(outcome.num_committed, None if tree.chain else outcome.path)
