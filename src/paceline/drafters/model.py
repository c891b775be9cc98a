"""A second, smaller language model drafts a chain or a tree with a cache of its own.

B rows, N nodes, D depth of the tree, V' the draft's vocabulary, V the target's.
"""

from collections.abc import Hashable
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.tree import fused_chain, make_grower, possible_draws
from paceline.drafters.tree.shapes import Shape, Topology
from paceline.models.base import LM, Ahead, Head, Missing, Output, longest_text
from paceline.models.prefill import feed, prefill

ORDINARY_LAG = 2  # the root, and the last drafted token when the whole draft was accepted
CATCH_UP = (8, 64, 256)  # chunk sizes for rows that fell behind


@final
class ModelDrafter(Drafter):
    """A second, smaller language model with the target's vocabulary and a cache of its own.

    Vocabulary sizes may differ by padding at the end, which is cut or filled. Its cache commits the root itself, so
    after an ordinary step it lags by the root and, when the accepted path ended in a node that it never read, by that
    one. A row that outgrows the draft's context drafts no more.

    ``shape`` (None: a chain as long as asked for) is what it drafts; the number of draft tokens that a plan asks for
    then is the depth to which the shape is grown. ``draws`` (None: all that the shape allows) limits how tokens are
    drawn. Raises ValueError where the shape allows none of them.
    """

    origins = ("model",)
    accepts_other_tokens = True

    def __init__(self, *, lm: LM, draws: frozenset[Draw] | None = None, shape: Shape | None = None) -> None:
        self.lm, self.shape = lm, shape
        self.draws = possible_draws(shape, draws)
        self.branches = shape is not None and shape.max_width > 1

    @property
    def slot_bytes(self) -> int:
        return self.lm.slot_bytes

    @property
    def host_state(self) -> Hashable:
        return self.lag

    def resume(self, host_state: Hashable) -> None:
        """Expect that lag."""
        assert isinstance(host_state, int)
        self.lag = host_state

    def max_nodes(self, num_draft_tokens: int) -> int:
        return 1 + self._shape(num_draft_tokens).num_drafted

    def start(self, context: DrafterContext) -> None:
        """A cache for the longest text that both the target's rows and the draft's context allow."""
        self.context = context
        depths = range(1, context.max_draft_tokens + 1)
        self.growers = [make_grower(self._shape(depth), context) for depth in depths]
        ahead = isinstance(self.lm, Ahead)
        self.chains = [fused_chain(grower, context) if ahead else None for grower in self.growers]
        ahead = max(ORDINARY_LAG, 1 + max((grower.num_read for grower in self.growers), default=0))
        self.reach = longest_text(self.lm, num_nodes=ahead)
        if self.reach < 1:
            raise ValueError(
                f"{self.max_nodes(context.max_draft_tokens) - 1} draft tokens leave no room in the "
                f"{self.lm.max_slots} slots of the draft model's window: lower num_draft_tokens"
            )
        self.cache = self.lm.new_cache(context.rows, min(context.max_length, self.reach) + ahead).view()
        self.lag = ORDINARY_LAG  # host's bound on the tokens that any row has yet to read, the root included

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Read the prompts up to their roots, each from where its own cache ends."""
        storage, known = self.cache.storage, admission.known.clamp(max=self.reach)
        view = storage.begin(admission, torch.minimum(admission.prefix_length, storage.length[admission.source]))
        # Its cache may hold less of a prefix than the target's; how much less is not known on the host.
        unread = int((known - view.length).max()) if admission.max_prefix_length else admission.unread
        text = self._readable(batch)[admission.rows]
        prefill(self.lm, view, text, known, min(unread, self.reach), taps=())

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The shape grown to the depth of the plan, each token drawn as the verifier asked."""
        if plan.num_draft_tokens == 0:
            return Tree.make_chain(batch.root[:, None], batch.active[:, None], no_draft_reason=NoDraft.OFF)
        grower, chain = self.growers[plan.num_draft_tokens - 1], self.chains[plan.num_draft_tokens - 1]
        self._catch_up(batch)
        grown = None
        if chain is not None:
            grown = chain.grow(batch, self._run_ahead, NoDraft.CONTEXT, longest=self.reach)
        if grown is None:
            room = torch.minimum(batch.draft_room, self.reach - batch.length + 1)
            grown = grower.grow(batch, self._fit(self._read_root(batch)), room, self._read, NoDraft.CONTEXT)
        self.slots, self.proposed = grown.slots, (grown.tree.tokens, grown.tree.valid)
        return grown.tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Keep what was accepted of what it read: all but the last drafted token at most."""
        if tree.max_depth == 0:
            self.lag += 1
            return
        self.lag = ORDINARY_LAG
        if tree.chain:
            read = (outcome.num_committed - 1).clamp(0, tree.max_depth - 1)
            tokens, valid = self.proposed
            if tree.tokens is not tokens:  # it has read its own, and keeps those that were right
                read = torch.minimum(read, (valid & (tokens == tree.tokens))[:, 1:].cumprod(-1).sum(-1))
                self.lag = max(ORDINARY_LAG, tree.max_depth + 1)
            self.cache.commit(read)
            return
        slots = self.slots.gather(1, outcome.path.clamp(min=0))  # [B, D]
        accepted = torch.arange(tree.max_depth, device=batch.device) < outcome.num_committed[:, None] - 1
        kept = accepted & (outcome.path >= 0) & (slots >= 0)
        # Where the root was read it lies before the forest: it is taken back, to be committed with its path.
        rooted = (outcome.num_committed > 0) & (self.cache.length == batch.length - outcome.num_committed)
        self.cache.truncate(self.cache.length - rooted.long())
        self.cache.commit(torch.where(rooted, 1 + kept.sum(-1), 0), torch.where(kept, slots + 1, -1))

    def _shape(self, depth: int) -> Shape:
        return Topology.chain(depth) if self.shape is None else self.shape.cut(depth)

    def _read(self, forest: Tree, start: int) -> Tensor:
        """Logits [B, n, V] after nodes ``start`` on of what is drafted so far."""
        output = self.lm(forest, self.cache, start=start)
        assert output.logits is not None
        return self._fit(output.logits)

    def _run_ahead(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read the root, draft and read a chain in one call."""
        assert isinstance(self.lm, Ahead)
        reads = batch.active
        if self.reach < self.context.max_length:
            reads = reads & (batch.length <= self.reach)
        count = torch.where(reads, batch.length - self.cache.length - 1, -1)
        missing = Missing(count=count, most=ORDINARY_LAG - 1)
        if not self.lm.run_ahead(batch, self.cache, missing, tokens, valid, greedy=greedy):
            return False
        self.cache.commit(count + 1)
        return True

    def _catch_up(self, batch: Batch) -> None:
        """Read what the cache lacks but for what is ordinary."""
        while self.lag > ORDINARY_LAG:
            size = next((size for size in CATCH_UP if size >= self.lag - ORDINARY_LAG), CATCH_UP[-1])
            # The root is left for who wants the logits after it.
            feed(self.lm, self.cache, self._readable(batch), (self._missing(batch) - 1).clamp(0, size), size)
            self.lag -= size

    def _read_root(self, batch: Batch) -> Tensor:
        """Read what the cache then lacks up to the root; logits [B, 1, V'] after it."""
        text, missing = self._readable(batch), self._missing(batch)
        logits = feed(self.lm, self.cache, text, missing, ORDINARY_LAG, head=Head.LAST).logits
        assert logits is not None
        return logits

    def _missing(self, batch: Batch) -> Tensor:
        """Known tokens not yet read [B]; none for inactive rows and beyond the draft's context."""
        missing = batch.length.clamp(max=self.reach) - self.cache.length
        return torch.where(batch.active, missing, 0)

    def _readable(self, batch: Batch) -> Tensor:
        """The text [B, T], ids that only the target's padded vocabulary has replaced by the draft's last."""
        return batch.tokens[:, : batch.max_length].clamp(max=self.lm.vocab_size - 1)

    def _fit(self, logits: Tensor) -> Tensor:
        """Logits over the draft's vocabulary to the target's: cut, or filled with -inf."""
        short = self.context.vocab_size - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, short), value=-torch.inf) if short else logits
