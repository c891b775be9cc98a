"""The target's own first layers and a small head draft; verification goes on from where they ended.

B rows, N nodes, n nodes of a call, D depth, V vocabulary, H hidden size, e the layers that are shared, the *stem*.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Resume, Tree
from paceline.draft_heads.early_exit import EarlyExitHead
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.hidden_states import PendingStates, path_hidden, read_hidden, with_root
from paceline.drafters.tree import fused_chain, make_grower, possible_draws
from paceline.drafters.tree.base import Grown
from paceline.drafters.tree.shapes import Shape, Topology
from paceline.models.base import LM, Ahead, Head, Missing, Output, Stem
from paceline.models.prefill import CHUNK

PAUSES = 32  # steps without drafts until the head reads what has come together meanwhile


@final
class EarlyExitDrafter(Drafter):
    """Leaves the target after some of its layers, and lets ``head`` say what the others would.

    The stem reads each draft token in the scratch of the target's own cache, so that verification only has to do the
    rest. The head has a cache of its own, of what the target itself made of the tokens that it verified, and learns
    of these when it is asked next. ``lm`` (None: the head's own decoder) is what runs ``head.decoder``.

    ``shape`` (None: a chain as long as asked for) and ``draws`` (None: all that the shape allows) as in ModelDrafter.
    Without ``resumes`` verification begins anew, to be compared with. Raises ValueError where the shape allows no draw.
    """

    origins = ("early_exit",)
    accepts_other_tokens = True

    def __init__(
        self,
        *,
        head: EarlyExitHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
        resumes: bool = True,
    ) -> None:
        self.head, self.lm, self.shape, self.resumes = head, head.decoder if lm is None else lm, shape, resumes
        self.draws = possible_draws(shape, draws)
        self.branches = shape is not None and shape.max_width > 1
        self.taps = head.taps

    @property
    def slot_bytes(self) -> int:
        decoder = self.head.decoder
        recycled = 0 if self.head.recycle is None else decoder.config.hidden_size * decoder.dtype.itemsize
        return self.lm.slot_bytes + recycled

    @property
    def host_state(self) -> Hashable:
        return self.lag

    def resume(self, host_state: Hashable) -> None:
        """Expect that lag."""
        assert isinstance(host_state, int)
        self.lag = host_state

    def max_nodes(self, num_draft_tokens: int) -> int:
        """Nodes of the largest tree, or of what the stem reads while it grows, if that is more."""
        shape = self._shape(num_draft_tokens)
        return 1 + max(shape.num_drafted, shape.num_read)

    def start(self, context: DrafterContext) -> None:
        """Allocate, and try the stem. Raises ValueError for a target other than the head's, or that runs only whole."""
        self.context = context
        self._check(context)
        self.stem = context.cache.storage.view(layers=range(self.head.options.exit_layer))  # its length is the target's
        self._try()
        depths = range(1, context.max_draft_tokens + 1)
        shapes = [self._shape(depth) for depth in depths]
        ahead = isinstance(self.lm, Ahead) and isinstance(context.target, Ahead)
        self.growers = [make_grower(shape, context) for shape in shapes]
        self.chains = [fused_chain(grower, context) if ahead else None for grower in self.growers]
        self.leading = [_num_leading(shape) for shape in shapes]
        self.depths = [shape.depth for shape in shapes]
        self.depth = max(self.depths, default=0)
        num_read = max((shape.num_read for shape in shapes), default=0)
        decoder = self.head.decoder
        size, dtype, device = decoder.config.hidden_size, decoder.dtype, context.device
        self.cache = self.lm.new_cache(context.rows, context.max_length + num_read).view()
        self.unread = PendingStates(context.rows, self.depth + PAUSES, size, dtype=dtype, device=device)
        self.lag = self.depth  # host's bound on what any row has yet to read, the root less; -1: nor the root
        # Chains that are drafted in one call: what the stem gives, in one piece for whatever depth.
        self.stream = torch.zeros(context.rows * (1 + self.depth) * size if ahead else 0, dtype=dtype, device=device)
        self.order = torch.arange(1 + self.depth, device=device)
        # Recycled: the target's last stream at every token of the text; the last column takes what must change nothing.
        columns = 0 if self.head.recycle is None else context.max_length + 1
        self.past = torch.zeros(context.rows, columns, size, dtype=dtype, device=device)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Read the prompts up to their roots: what sources hold is copied, and what they have yet to read is read."""
        storage = self.cache.storage
        length = torch.minimum(admission.prefix_length, storage.length[admission.source])
        view = storage.begin(admission, length)
        if admission.max_prefix_length:
            read_hidden(self.lm, view, self.unread.states[admission.source, :-1], admission.prefix_length - length)
        self.unread.count.index_fill_(0, admission.rows, 0)
        if admission.moves:
            longest = min(admission.max_prefix_length, self.past.shape[1])
            self.past[admission.rows, :longest] = self.past[admission.source, :longest]
        if not hidden:
            return
        states = self._with_past(admission, hidden)
        for start in range(0, states.shape[1], CHUNK):
            piece = states[:, start : start + CHUNK]
            read_hidden(self.lm, view, piece, (admission.known - view.length).clamp(0, piece.shape[1]))

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The shape grown to the depth of the plan, each token drawn as the verifier asked."""
        index = plan.num_draft_tokens - 1
        depth = 0 if index < 0 else self.depths[index]
        if depth == 0:
            return _only_root(batch)
        self.batch, self.added = batch, self._added(batch, depth)
        if self.lag < 0:  # of a step that was cut off, and is done again, the root was read before
            self.cache.truncate(torch.minimum(self.cache.length, batch.length - 1 - self.unread.count))
        chain = self.chains[index]
        grown = None if chain is None else chain.grow(batch, self._run_ahead, NoDraft.DECLINED)
        if grown is None:
            self.hidden = [self._stem(_only_root(batch), 0)]  # of the root, then of the forest as it is read
            logits = self._read_root(batch, self.hidden[0])
            grown = self.growers[index].grow(batch, logits, batch.draft_room, self._read, NoDraft.DECLINED)
        return self._to_resume(grown, self.leading[index]) if self.resumes else grown.tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Note what the target made of the tokens that it verified, for the head to read when it is asked next."""
        num, root = outcome.num_committed, batch.length - outcome.num_committed - 1  # where the root stands
        states = path_hidden(output, self.taps[0], tree, outcome)
        if self.head.recycle is not None:
            states = states + self._note(root, num, path_hidden(output, self.taps[1], tree, outcome))
        if self.lag + 1 + tree.max_depth > self.unread.capacity:
            read_hidden(self.lm, self.cache, self.unread.states[:, :-1], self.unread.count)
            self.unread.count.zero_()
            self.lag = 0
        # Where a draft began at the root the head has read that already.
        first = torch.minimum((self.cache.length + self.unread.count - root).clamp(min=0), num)
        self.unread.add(states, first, num)
        self.lag = max(self.depth, self.lag + 1 + tree.max_depth)

    def _shape(self, depth: int) -> Shape:
        return Topology.chain(depth) if self.shape is None else self.shape.cut(depth)

    def _check(self, context: DrafterContext) -> None:
        """Raise ValueError for a target that the head cannot be of."""
        ours = (self.head.num_layers, self.head.decoder.vocab_size)
        theirs = (context.target.num_layers, context.vocab_size)
        if ours != theirs:
            raise ValueError(
                f"this head is of a target of {ours[0]} layers and {ours[1]} tokens, and the target has {theirs[0]} "
                f"layers and {theirs[1]} tokens: give a head that was trained for it"
            )

    def _try(self) -> None:
        """Let the stem read nothing at all. Raises ValueError where the target runs all of its layers or none."""
        nobody = torch.zeros(self.context.rows, 1, dtype=torch.int64, device=self.context.device)
        with torch.no_grad():
            self._stem(Tree.make_chain(nobody, nobody.bool()), 0)

    def _stem(self, tree: Tree, start: int) -> Tensor:
        """The residual stream [B, n, H] after the stem's layers, of nodes ``start`` on of a tree with its root."""
        exit_layer = self.head.options.exit_layer
        output = self.context.target(tree, self.stem, start=start, taps=(exit_layer,), head=Head.NONE)
        return output.hidden[exit_layer]

    def _read_root(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Let the head read what its cache lacks, then the root's ``hidden`` [B, 1, H]; logits [B, 1, V] after that."""
        newest = hidden if self.added is None else hidden + self.added[:, :1]
        count = torch.where(batch.active, self.unread.count + 1, 0)
        states = self.unread.then(newest, self._most)
        logits = read_hidden(self.lm, self.cache, states, count, head=Head.LAST).logits
        self._all_read(batch)
        assert logits is not None
        return logits

    @property
    def _most(self) -> int:
        """A bound on what any row has yet to read before its root; one of two, as steps of equal sizes can be kept."""
        return self.depth if self.lag <= self.depth else self.unread.capacity

    def _all_read(self, batch: Batch) -> None:
        """Note that active rows lack nothing, the root included."""
        self.unread.count.masked_fill_(batch.active, 0)
        self.lag = -1

    def _read(self, forest: Tree, start: int) -> Tensor:
        """Logits [B, n, V] after nodes ``start`` on of what is drafted so far."""
        hidden = self._stem(with_root(self.batch.root, self.batch.active, forest), 1 + start)
        self.hidden.append(hidden)
        if self.added is not None:
            depth = forest.depth[:, start:, None] + 1
            hidden = hidden + self.added.gather(1, depth.expand_as(hidden))
        resume = Resume(layer=0, hidden=hidden, ready=forest.valid[:, start:], first=hidden.shape[1])
        logits = self.lm(forest, self.cache, start=start, resume=resume).logits
        assert logits is not None
        return logits

    def _run_ahead(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read what the head lacks and the root, draft and read a chain in one call."""
        assert isinstance(self.lm, Ahead)
        rows, nodes = tokens.shape
        hidden = self.stream[: rows * nodes * self.unread.states.shape[-1]].view(rows, nodes, -1)
        stem = Stem(lm=self.context.target, cache=self.stem, hidden=hidden, added=self.added)
        missing = Missing(count=self.unread.count, most=self._most, states=self.unread.states)
        if not self.lm.run_ahead(batch, self.cache, missing, tokens, valid, greedy=greedy, stem=stem):
            return False
        self.cache.commit(torch.where(batch.active, self.unread.count + 1, 0))
        self._all_read(batch)
        self.hidden = [hidden]
        return True

    def _to_resume(self, grown: Grown, leading: int) -> Tree:
        """The tree with what the stem made of its nodes, of which the first ``leading`` were all read.

        In the scratch each comes to lie in its own place.
        """
        tree, nodes = grown.tree, grown.tree.num_nodes
        if self.hidden[0].shape[1] == nodes:  # a chain's, in its own order
            ready = (self.order[:nodes] < nodes - 1).expand_as(tree.tokens)
            resume = Resume(layer=self.taps[0], hidden=self.hidden[0], ready=ready, first=leading)
            return replace(tree, resume=resume)
        known = torch.cat(self.hidden, dim=1)  # in the order in which nodes were read
        place = grown.slots + 1  # 0 where a node was not read, and at the root
        if not tree.chain:
            self.stem.permute(torch.where(place > 0, place, -1))
        ready = F.pad(place[:, 1:] > 0, (1, 0), value=True)
        hidden = known.gather(1, place[..., None].expand(-1, -1, known.shape[-1]))
        return replace(tree, resume=Resume(layer=self.taps[0], hidden=hidden, ready=ready, first=leading))

    def _added(self, batch: Batch, depth: int) -> Tensor | None:
        """What the head reads beside the stem's states at every depth of the draft [B, 1 + D, H], if anything."""
        if self.head.recycle is None:
            return None
        last = (batch.length - 2).clamp(min=0)[:, None, None]
        age = torch.arange(depth + 1, device=batch.device).expand(batch.rows, -1)
        known = (batch.length > 1)[:, None].expand_as(age)
        return self.head.recycle(self.past.gather(1, last.expand(-1, -1, self.past.shape[-1])), age, known)

    def _note(self, root: Tensor, num: Tensor, last: Tensor) -> Tensor:
        """Keep the target's ``last`` stream [B, 1 + D, H] at the tokens of a step, and what theirs had before them."""
        return self._keep(torch.arange(len(root), device=root.device), root, num, last)

    def _with_past(self, admission: Admission, hidden: dict[int, Tensor]) -> Tensor:
        """What the head reads of prompts whose ``hidden`` states [B, n, H] the target gave."""
        states = hidden[self.taps[0]]
        if self.head.recycle is None:
            return states
        num = admission.known - admission.prefix_length
        return states + self._keep(admission.rows, admission.prefix_length, num, hidden[self.taps[1]])

    def _keep(self, rows: Tensor, start: Tensor, num: Tensor, last: Tensor) -> Tensor:
        """Keep the first ``num`` of ``last`` [B, n, H] for ``rows`` from ``start`` on; what theirs say to the next."""
        assert self.head.recycle is not None
        index = torch.arange(last.shape[1], device=last.device)
        at = start[:, None] + index
        into = torch.where(index < num[:, None], at, self.past.shape[1] - 1)
        self.past.index_put_((rows[:, None].expand_as(into), into), last)
        before = self.past[rows[:, None], (at - 1).clamp(0, self.past.shape[1] - 1)]
        return self.head.recycle(before, torch.zeros_like(at), at > 0)


def _only_root(batch: Batch) -> Tree:
    return Tree.make_chain(batch.root[:, None], batch.active[:, None], no_draft_reason=NoDraft.OFF)


def _num_leading(shape: Shape) -> int:
    """Nodes that are read before the first one that is not, wherever they are valid; the root is among them."""
    if not isinstance(shape, Topology):
        return 1
    parents = shape.parents
    return next(node for node in range(len(parents)) if node not in parents)
