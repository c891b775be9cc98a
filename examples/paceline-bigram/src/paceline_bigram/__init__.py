"""A drafter that remembers what followed each token last, and a verifier that keeps at most one drafted token.

R rows, B admitted rows, V vocabulary, T text capacity, k draft tokens, D largest draft depth, N nodes.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.plan import StepPlan
from paceline.core.scores import Scores
from paceline.core.tree import Draw, NoDraft, Outcome, Tree, follow
from paceline.drafters.base import Drafter, DrafterContext
from paceline.verifiers.base import Verifier


@final
class BigramDrafter(Drafter):
    """Drafts the token that followed the newest one last, then what followed that one, and so on.

    For each row it keeps where each token of the vocabulary last stood with another token after it: a table [R, V].
    """

    origins = ("bigram",)
    draws = frozenset({Draw.FIXED})

    def start(self, context: DrafterContext) -> None:
        """A table that knows nothing."""
        shape = (context.rows, context.vocab_size)
        self.last = torch.full(shape, -1, dtype=torch.int64, device=context.device)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Look through the prompts. They lie in the batch whole, so a prefix is read again rather than forked."""
        text = batch.tokens[admission.rows, : batch.max_length]  # [B, T]
        position = torch.arange(batch.max_length, device=batch.device).expand_as(text)
        seen = torch.where(position < admission.known[:, None], position, -1)  # the root has nothing after it yet
        empty = torch.full_like(self.last[admission.rows], -1)
        self.last[admission.rows] = empty.scatter_reduce(1, text, seen, "amax")

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """A chain [R, k + 1] along the table, as far as it knows a successor."""
        tokens, valid = [batch.root], [batch.active]
        for index in range(plan.num_draft_tokens):
            at = self.last.gather(1, tokens[-1][:, None])  # [R, 1]
            successor = batch.tokens.gather(1, at + 1)[:, 0]  # the first token where at is -1
            tokens.append(successor)
            valid.append(valid[-1] & (at[:, 0] >= 0) & (index < batch.draft_room))
        return Tree.make_chain(torch.stack(tokens, dim=1), torch.stack(valid, dim=1), no_draft_reason=NoDraft.NO_MATCH)

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Enter every token that has got a successor: the former root, and all that was appended but the new root."""
        index = torch.arange(tree.max_depth + 1, device=batch.device)
        position = (batch.length - outcome.num_committed)[:, None] - 1 + index  # [R, D + 1] from the former root on
        token = batch.tokens.gather(1, position.clamp(max=batch.max_length))
        seen = torch.where(index < outcome.num_committed[:, None], position, -1)
        self.last.scatter_reduce_(1, token, seen, "amax")  # of a token that occurs twice the later place stays


@final
class FirstToken(Verifier):
    """As ``coupled``, but never keeps more than one drafted token: shows what drafts are worth at depth one.

    The target picks at every node with the noise of its position, so the tokens are those of plain decoding.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True
    wants: ClassVar[tuple[Draw, ...]] = (Draw.SHARED, Draw.FIXED, Draw.IID, Draw.NO_REPLACEMENT)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """Follow the pick at the root if it was drafted, and emit the pick after it."""
        picks = batch.pick(scores.logits, batch.length[:, None] + tree.depth)  # [R, N]
        wanted = picks.gather(1, tree.parents.clamp(min=0))  # the pick at each node's parent
        leaf, path, length = follow(tree, (tree.tokens == wanted) & (tree.depth <= 1))
        return Outcome(path=path, num_committed=length + 1, next=picks.gather(1, leaf[:, None])[:, 0], picks=picks)
