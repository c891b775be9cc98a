"""Lookahead decoding (2402.02057): the target guesses its own next tokens beside the draft, in the same forward.

R rows, W window columns, n tokens of an n-gram, G guesses, B buckets, k draft tokens, U = (n - 1) W - 1 window nodes.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.ngram_pool import NgramPool

MOST_NODES = 512  # of the window: what one forward can take beside the draft


@final
class LookaheadDrafter(Drafter):
    """Copies n-grams that the target itself produced ahead of the sequence; needs no model and no training.

    The *window* holds ``window`` columns of n - 1 = ``ngram`` - 1 tokens: column c is a guess of the tokens from the
    c-th after the root on, each made one step after the one before it (Jacobi iteration). The target's forward reads
    the window beside the draft (``Tree.unverified``); its likeliest token after each column completes an n-gram, and
    the window moves on. N-grams are kept by their first token, the ``guesses`` latest of each, and those that begin
    with the root are drafted: the latest as a chain, or the ``paths`` latest as a tree. ``from_prompt`` puts the
    prompt's own n-grams there first.

    Raises ValueError for a window of less than 1 column, n-grams of less than 3 tokens, less than 1 guess, paths
    outside 1 to ``guesses``, and a window of more than 512 nodes.
    """

    origins = ("lookahead",)
    draws = frozenset({Draw.FIXED})
    accepts_other_tokens = True

    def __init__(
        self, *, window: int = 5, ngram: int = 4, guesses: int = 4, paths: int = 1, from_prompt: bool = True
    ) -> None:
        if window < 1:
            raise ValueError(f"window={window}: give at least 1 column")
        if ngram < 3:
            raise ValueError(f"ngram={ngram}: give at least 3; for n-grams of 2 tokens take the drafter 'ngram'")
        if guesses < 1:
            raise ValueError(f"guesses={guesses}: give at least 1")
        if not 1 <= paths <= guesses:
            raise ValueError(f"paths={paths}: give 1 (a chain) to guesses={guesses}, which are kept of a token")
        if (ngram - 1) * window > MOST_NODES:
            raise ValueError(
                f"window={window}, ngram={ngram}: (ngram - 1) * window = {(ngram - 1) * window} nodes in every step; "
                f"give {MOST_NODES} at most"
            )
        self.window, self.ngram, self.guesses, self.paths = window, ngram, guesses, paths
        self.from_prompt, self.branches = from_prompt, paths > 1
        self.num_unverified = (ngram - 1) * window - 1

    @property
    def host_state(self) -> Hashable:
        return ()

    def max_nodes(self, num_draft_tokens: int) -> int:
        """The root, the paths and the window; without a draft the root alone."""
        if not num_draft_tokens:
            return 1
        drafted = num_draft_tokens if self.paths == 1 else self.paths * min(num_draft_tokens, self.ngram - 1)
        return 1 + drafted + self.num_unverified

    def start(self, context: DrafterContext) -> None:
        """Allocate windows and pools."""
        rows, device, levels = context.rows, context.device, self.ngram - 1
        self.pool = NgramPool(
            rows=rows, ngram=self.ngram, guesses=self.guesses, vocab_size=context.vocab_size, device=device
        )
        self.columns = torch.zeros(rows, levels, self.window, dtype=torch.int64, device=device)  # [0, 0] is not used
        self.age = torch.zeros(rows, dtype=torch.int64, device=device)  # steps since the window began
        self.column = torch.arange(self.window, device=device)
        # Node j * W + c is the j-th token of column c, and [0, 0] the root: a chain of first tokens, and below each
        # of them the rest of its column.
        node = torch.arange(levels * self.window, device=device)
        above = torch.where(node < self.window, node - 1, node - self.window)
        tokens = torch.zeros(rows, len(node), dtype=torch.int64, device=device)
        depth = self.window + levels - 2
        self.shape = Tree.make(tokens, above.expand_as(tokens), tokens.bool(), max_depth=depth)
        self.path = torch.arange(self.paths, device=device)[:, None]

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Begin anew: a window of the prompt's last tokens, and a pool of its n-grams or of nothing."""
        prompts = [request.tokens for request in admission.requests]
        self.pool.begin(admission.row_numbers, prompts if self.from_prompt else [() for _ in prompts])
        size = (self.ngram - 1) * self.window
        begun = torch.tensor([_last(prompt, size) for prompt in prompts], device=self.columns.device)
        self.columns[admission.rows] = begun.view(-1, self.ngram - 1, self.window)
        self.age.index_fill_(0, admission.rows, 0)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """A chain [R, 1 + k] of the latest n-grams, or a tree; rows without one have the root alone."""
        draft = self._chain if self.paths == 1 else self._tree
        tree = draft(batch, plan.num_draft_tokens)
        tokens = torch.cat((batch.root[:, None], self.columns.flatten(1)[:, 1:]), dim=1)
        valid = batch.drafts[:, None].expand_as(tokens)
        return replace(tree, unverified=replace(self.shape, tokens=tokens, valid=valid))

    def observe_unverified(self, tree: Tree, likeliest: Tensor) -> None:
        """Put the window's n-grams into the pool, and let each token follow the one before it.

        The window moves on by one token however many were accepted, as in the authors' implementation: columns that
        follow the root more closely would have to be begun anew at the other end.
        """
        assert tree.unverified is not None
        before, ran = tree.unverified.tokens, tree.unverified.valid[:, 0]
        tokens = torch.cat((before, likeliest[:, -self.window :]), dim=1).view(-1, self.ngram, self.window)
        full = ran & (self.age >= self.ngram - 2)  # before, columns hold tokens that nobody predicted
        self.pool.add(tokens.transpose(1, 2), full[:, None].expand(-1, self.window))
        self.columns.copy_(torch.where(ran[:, None, None], tokens[:, 1:], self.columns))
        self.age.add_(ran)

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Keeps nothing of the draft."""

    def _chain(self, batch: Batch, depth: int) -> Tree:
        """The latest n-gram that begins with the root, then the latest that begins with its last token, and so on."""
        tokens, valid, last, found = [batch.root[:, None]], [batch.active[:, None]], batch.root, batch.active
        for _ in range(0, depth, self.ngram - 1):
            guesses, known = self.pool.find(last)
            found = found & known[:, -1]
            tokens.append(guesses[:, -1])
            valid.append(found[:, None].expand(-1, self.ngram - 1))
            last = guesses[:, -1, -1]
        chain, drafted = torch.cat(tokens, dim=1)[:, : depth + 1], torch.cat(valid, dim=1)[:, : depth + 1]
        within = torch.arange(depth + 1, device=chain.device) <= batch.draft_room[:, None]
        drafted = drafted & within
        return batch.chain(torch.where(drafted, chain, 0), drafted, no_draft_reason=NoDraft.NO_MATCH)

    def _tree(self, batch: Batch, depth: int) -> Tree:
        """The latest n-grams that begin with the root; what two have in common at the beginning is in one path."""
        depth, paths = min(depth, self.ngram - 1), self.paths
        guesses, known = self.pool.find(batch.root)
        guesses, known = guesses[:, -paths:, :depth].flip(1), known[:, -paths:].flip(1)  # [R, P, d], the latest first
        equal = (guesses[:, :, None] == guesses[:, None]).long().cumprod(-1).bool() & known[:, None, :, None]
        first = (equal & (self.path.T <= self.path)[..., None]).int().argmax(2)  # [R, P, d] the path that has the node
        step = torch.arange(depth, device=guesses.device)
        within = (step < batch.draft_room[:, None, None]) & batch.active[:, None, None]
        valid = (first == self.path) & known[..., None] & within
        node = 1 + first * depth + step
        parents = F.pad(node[..., :-1], (1, 0), value=0).flatten(1)
        return Tree.make(
            torch.cat((batch.root[:, None], torch.where(valid, guesses, 0).flatten(1)), dim=1),
            F.pad(parents, (1, 0), value=-1),
            torch.cat((batch.active[:, None], valid.flatten(1)), dim=1),
            max_depth=depth,
            no_draft_reason=NoDraft.NO_MATCH,
        )


def _last(prompt: Sequence[int], size: int) -> list[int]:
    """``size`` tokens: the last of ``prompt``, again and again if it is shorter."""
    return [prompt[at % len(prompt)] for at in range(len(prompt) - size, len(prompt))]
