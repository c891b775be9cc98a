"""The skeleton of drafters that grow a tree: read the root of every row, then expand node by node.

B rows, N nodes, n nodes of a call, V the target's vocabulary, D the draft's.
"""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from enum import Enum
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft, Tree
from paceline.draft_heads.vocab_map import PaddedVocab, VocabMap
from paceline.drafters.base import Drafter, DrafterContext, root_only
from paceline.drafters.tree import FusedChain, fused_chain, make_grower, possible_draws
from paceline.drafters.tree.base import ConfidenceScorer, GrownTree, TreeGrower
from paceline.drafters.tree.shapes import Chain, Shape, Topology
from paceline.models.base import LM, FusedDrafting


class DraftInput(Enum):
    """What a draft model or head reads at a position of its sequence."""

    EMBEDDING = "embedding of a token"
    HIDDEN = "hidden state of the target"


class GrowingDrafter(Drafter):
    """Drafts with ``lm``, which scores the root and then the nodes that have children; None if ``bind`` makes it.

    ``shape`` (None: a chain) is cut to the depth that the plan asks for. ``draws`` (None: all that the shape allows)
    limits how tokens are drawn. ``vocab`` maps the logits of ``lm`` to the target's vocabulary (None: the same ids,
    padded or cut at the end). Raises ValueError if the shape allows none of ``draws``.

    Subclasses allocate their state, read the root and score nodes. The tokens that they read are the target's; a model
    that embeds draft ids maps them with ``vocab_map.draft_ids``.
    """

    inputs: ClassVar[frozenset[DraftInput]]  # what ``lm`` reads
    accepts_other_tokens = True
    maps_fused: ClassVar[bool] = False  # whether ``draft_fused`` maps draft ids to the target's
    max_context: int | None = None  # rows with more tokens are not drafted for; None: there is no limit
    skipped: Sequence[int] = ()  # rows that have no draft in this step, as far as the host knows
    confidence: ConfidenceScorer | None = None  # its own judgement of acceptance; None: its distributions are that
    reads: Tensor  # [B] bool, which rows read their root in this step
    lm: LM

    def __init__(
        self, *, lm: LM | None, shape: Shape | None, draws: frozenset[Draw] | None, vocab: VocabMap | None = None
    ) -> None:
        if lm is not None:  # else ``bind`` sets it
            self.lm = lm
        self.shape, self.vocab = shape, vocab
        self.draws = possible_draws(shape, draws)
        self.branches = shape is not None and shape.max_width > 1
        self.ends_early = shape is None or (isinstance(shape, Chain | Topology) and shape.max_width == 1)

    @property
    def host_state(self) -> Hashable:
        return ()

    @property
    def own_model(self) -> LM | None:
        """``lm``; None where that is the target itself."""
        return self.lm

    @property
    def own_weights(self) -> LM | nn.Module | None:
        """What tells its weights from those of others: ``own_model``, unless it has weights beside that."""
        return self.own_model

    @property
    def draft_vocab_size(self) -> int:
        """Of the logits that ``read_root`` and ``score_nodes`` give: those of ``lm``, unless something follows it."""
        return self.lm.vocab_size

    def max_nodes(self, num_draft_tokens: int) -> int:
        return 1 + self.shape_at(num_draft_tokens).num_drafted

    def shape_at(self, depth: int) -> Shape:
        """The shape of drafts at most ``depth`` tokens deep."""
        return Chain(depth) if self.shape is None else self.shape.cut(depth)

    @final
    def start(self, context: DrafterContext) -> None:
        """A grower for the deepest draft, and the subclass's state. Raises ValueError for a target it cannot serve."""
        self.check_target(context)
        self.bind(context)
        self.context = context
        size = self.draft_vocab_size
        self.vocab_map = self.vocab or PaddedVocab(draft_size=size, target_size=context.vocab_size)
        if (self.vocab_map.draft_size, self.vocab_map.target_size) != (size, context.vocab_size):
            raise ValueError(
                f"a vocabulary map from {self.vocab_map.draft_size} to {self.vocab_map.target_size} tokens, and the "
                f"draft has {size} and the target {context.vocab_size}: give the map of this pair"
            )
        # By num_draft_tokens; all but the deepest are made when they are first asked for, as a call may never ask.
        self.growers: dict[int, tuple[TreeGrower, FusedChain | None]] = {}
        deepest = self.shape_at(context.max_draft_tokens)
        self.depth = deepest.depth
        if context.max_draft_tokens:
            self._prepare_grower(context.max_draft_tokens)
        self.allocate(context, max_expanded=deepest.num_expanded)

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Note which rows the plan and their requests leave without a draft; a grower for the plan's depth."""
        drafts = plan.num_draft_tokens > 0
        if drafts:
            self._prepare_grower(plan.num_draft_tokens)
        self.skipped = [
            row
            for row, request in enumerate(batch.requests)
            if request is not None and not (drafts and request.num_draft_tokens != 0 and plan.depth_of(row))
        ]

    @final
    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The shape grown to the depth of the plan, each token drawn as agreed with the verifier."""
        depth = min(plan.num_draft_tokens, self.depth)
        if depth == 0:
            return root_only(batch)
        self.reads = batch.drafts if self.skipped else batch.active
        self.prepare(batch, depth)
        grown, (grower, fused) = None, self.growers[plan.num_draft_tokens]
        reason = NoDraft.DECLINED if self.max_context is None else NoDraft.CONTEXT
        if fused is not None:
            grown = fused.grow(batch, self.draft_fused, reason, max_context=self.max_context)
        if grown is None:
            logits = self.vocab_map.target_logits(self.read_root(batch))
            grown = grower.grow(batch, logits, self._max_depth(batch), self._score, reason, self.confidence)
        return self.finish(batch, grown)

    def num_known(self, batch: Batch) -> Tensor:
        """The length [B] of what it has to read of each row, the root included, in its own tokens."""
        return batch.length

    def check_target(self, context: DrafterContext) -> None:
        """Raise ValueError for a target that it cannot draft for."""

    def bind(self, context: DrafterContext) -> None:
        """Set ``lm``, where it is made of the target."""

    @abstractmethod
    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """Allocate state for rows of ``context`` whose trees have at most ``max_expanded`` nodes to score."""

    def prepare(self, batch: Batch, depth: int) -> None:
        """Prepare a draft of ``depth`` >= 1 tokens."""

    def can_draft_fused(self, context: DrafterContext) -> bool:
        """Whether ``draft_fused`` may be called, where the shape is a chain that the model can pick itself."""
        return isinstance(self.lm, FusedDrafting)

    def draft_fused(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read the root, draft and read a chain in one call, as models/base.FusedDrafting; False if it cannot."""
        return False

    @abstractmethod
    def read_root(self, batch: Batch) -> Tensor:
        """Read the roots of the rows in ``reads``; the draft logits [B, 1, D] after them."""

    @abstractmethod
    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        """The draft logits [B, n, D] after nodes ``start`` on of ``forest``; see tree/base.NodeScorer."""

    def finish(self, batch: Batch, grown: GrownTree) -> Tree:
        """The tree to propose."""
        return grown.tree

    def _prepare_grower(self, num_draft_tokens: int) -> None:
        if num_draft_tokens not in self.growers:
            grower = make_grower(self.shape_at(num_draft_tokens), self.context)
            fused, lm = None, self.lm
            mapped = self.vocab_map.same_ids or self.maps_fused
            if isinstance(lm, FusedDrafting) and mapped and self.can_draft_fused(self.context):
                fused = fused_chain(grower, self.context, lm.fused_draws)
            self.growers[num_draft_tokens] = grower, fused

    def _max_depth(self, batch: Batch) -> Tensor:
        """How deep each row [B] may be drafted for."""
        if self.max_context is None:
            return batch.draft_room
        return torch.minimum(batch.draft_room, self.max_context - self.num_known(batch) + 1)

    def _score(self, forest: Tree, start: int) -> Tensor:
        """Target logits [B, n, V] after nodes ``start`` on."""
        return self.vocab_map.target_logits(self.score_nodes(forest, start))
