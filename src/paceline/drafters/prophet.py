"""Drafts with a small decoder over the target's last hidden states and the tokens after them (the prophet transformer).

R rows, B = R, N nodes, s states, W the prophet's width, V vocabulary.
"""

from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.tree import Draw, Outcome, Resume, Tree
from paceline.draft_heads.prophet import ProphetHead
from paceline.drafters.base import DrafterContext
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.hidden_states import check_head_target
from paceline.drafters.last_states import LastHiddenStates
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM, FusedDrafting, InputProjection, LogitsFor, PendingInputs


@final
class ProphetDrafter(GrowingDrafter):
    """A small decoder whose context is the target's last hidden states, followed by the root and the draft.

    Its cache holds the states, the root and the drafted tokens, and starts empty in every step: nothing is committed
    and nothing taken back, so it has no limit on the length of a sequence or of a draft.

    ``lm`` runs the head's decoder (None: itself). ``shape`` (None: a chain) is what it drafts, ``draws`` (None: all
    that the shape allows) limits how tokens are drawn. Raises ValueError if the shape allows none of them.
    """

    inputs = frozenset({DraftInput.EMBEDDING, DraftInput.HIDDEN})
    origins = ("prophet",)
    joins = True
    maps_fused = True

    def __init__(
        self,
        *,
        head: ProphetHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(lm=lm or head.drafting_decoder, shape=shape, draws=draws, vocab=head.vocab_map)
        self.head = head
        self.taps = head.taps
        self.num_reread = self.last_states = head.sizes.num_states

    def check_target(self, context: DrafterContext) -> None:
        check_head_target(context, num_layers=self.head.taps[-1], vocab_size=self.head.decoder.vocab_size)

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """The last states and a cache of a few slots per row."""
        count, device = self.head.sizes.num_states, context.device
        self.states = LastHiddenStates(context, tap=self.head.taps[0], count=count, hidden_size=self.head.hidden_size)
        self.ready = (torch.arange(count + 1, device=device) < count).expand(context.rows, -1)
        self.input_projection = InputProjection(norm=self.head.norm, product=self.head.project)
        self.count = torch.full((context.rows,), count, device=device)
        storage = self.lm.new_cache(context.rows, count + 1 + max_expanded)
        # Two views whose committed length never changes: none, and the states with the root.
        self.empty, self.rooted = storage.view().apart(), storage.view().apart()
        self.rooted.truncate(count + 1)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Keep the states before the roots."""
        self.states.admit(admission, hidden)

    def draft_fused(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read the states and the root, draft and read a chain in one call."""
        assert isinstance(self.lm, FusedDrafting)
        states = self.states.states
        count = torch.where(self.reads, self.count, -1) if self.skipped else self.count
        pending = PendingInputs(
            count=count,
            max_count=states.shape[1],
            states=states,
            input_projection=self.input_projection,
            own_ids=self.head.draft_ids,
        )
        return self.lm.draft_fused(batch, self.empty, pending, tokens, valid, greedy=greedy)

    def read_root(self, batch: Batch) -> Tensor:
        """Read the states, then the root."""
        count = self.head.sizes.num_states
        tokens = F.pad(batch.root[:, None], (count, 0))  # the tokens in the place of states are not embedded
        tree = Tree.make_chain(tokens, self.reads[:, None].expand_as(tokens))
        hidden = F.pad(self.head.embed_states(self.states.states), (0, 0, 0, 1))  # [B, s + 1, W]
        resume = Resume(layer=0, hidden=hidden, ready=self.ready, first=count)
        logits = self.lm(tree, self.empty, logits_for=LogitsFor.LAST, resume=resume).logits
        assert logits is not None
        return logits

    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        logits = self.lm(forest, self.rooted, start=start).logits
        assert logits is not None
        return logits

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Keep the states of the accepted tokens, whatever was drafted after them."""
        self.states.update(tree, outcome, hidden)
