"""The sequences in progress: fixed rows on the device, each advancing at its own rate.

R rows, T sequence capacity, N nodes, D draft depth, E stop tokens.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from paceline.core.batch_state import BatchState
from paceline.core.chains import ChainTrees
from paceline.core.early_stop import StopRule
from paceline.core.host import entries
from paceline.core.logprobs import KeptScores
from paceline.core.noise import Noise
from paceline.core.ops import Ops, TensorOps
from paceline.core.prompt_lookup import NgramOptions
from paceline.core.request import MAX_STOP_TOKENS, Request
from paceline.core.scores import Scores
from paceline.core.step import Failure, Finish
from paceline.core.step_drafts import StepDrafts
from paceline.core.tree import NoDraft, Outcome, Tree


@final
class Batch(BatchState):
    """R rows of tokens that steps draft for, sample from and extend by ``ops`` (None: plain tensor operations).

    ``noise`` None is that of ``ops``; of its streams but the target's, batches of different ``stage`` share nothing.
    """

    def __init__(
        self,
        *,
        rows: int,
        max_length: int,
        max_depth: int,
        vocab_size: int,
        device: torch.device,
        noise: Noise | None = None,
        ops: Ops | None = None,
        stage: int = 0,
    ) -> None:
        self._ops = ops or TensorOps()
        self._depths: tuple[int, ...] | None = None  # that ``planned`` holds; None: no limits
        super().__init__(
            rows=rows,
            max_length=max_length,
            max_depth=max_depth,
            vocab_size=vocab_size,
            noise=noise or self._ops.noise,
            device=device,
            stage=stage,
        )
        self._planned = entries(self.planned)
        self._chains = ChainTrees(rows, max_depth, device)

    def plan(self, depths: tuple[int, ...] | None, stop: StopRule | None = None) -> None:
        """Allow each row a draft of at most ``depths`` tokens from now on; None: no limit. ``stop`` ends chains."""
        self.early_stop.plan(stop)
        if depths != self._depths:
            self._depths = depths
            limits = (self.max_depth,) * self.rows if depths is None else depths
            if self._planned is None:
                self.planned.copy_(torch.tensor(limits, dtype=torch.int64), non_blocking=True)
            else:
                self._planned[:] = array("q", limits)

    @property
    def idle(self) -> bool:
        """Whether it is known, without waiting for a device, that no row takes part in steps."""
        return self._ops.idle(self)

    def begin_chain(self, depth: int, *, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """The tokens and the validity [R, 1 + depth] of a chain that is to be drafted: its roots, and zeros.

        A drafter that reads at most ``longest`` tokens of a sequence drafts none beyond the one that follows them.
        """
        return self._ops.begin_chain(self, depth, longest)

    def ngram_chain(self, depth: int, options: NgramOptions) -> tuple[Tensor, Tensor]:
        """The tokens and the validity [R, 1 + depth] of chains that copy what followed each row's last tokens before.

        Rows without a match, or that may have no draft, have the root alone; tokens that are not valid are 0.
        """
        return self._ops.ngram_chain(self, depth, options)

    def chain(self, tokens: Tensor, valid: Tensor, *, no_draft_reason: NoDraft = NoDraft.DECLINED) -> Tree:
        """The tree of the chain ``tokens`` and ``valid`` [R, N], the root first; every token is a fixed choice."""
        return self._chains.tree(tokens, valid, no_draft_reason)

    def process(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """``logits`` [R, n, V] after every row's logits processors; as they are where no row has any.

        ``drafted`` [R, n, d] are the tokens between each row's sequence and the token that the logits are for, -1
        after the last. What is changed comes in single precision at least.
        """
        return self._ops.process(self, logits, drafted) if self.processing.any else logits

    def process_tree(self, logits: Tensor, tree: Tree) -> Tensor:
        """``process`` for the ``logits`` [R, N, V] after every node of ``tree``."""
        return self._ops.process_tree(self, logits, tree) if self.processing.any else logits

    def pick(self, logits: Tensor, position: Tensor) -> Tensor:
        """The target's own choice [R, n] from processed ``logits`` [R, n, V] for the token at ``position`` [R, n]."""
        return self._ops.pick(self, logits, position)

    def picks(self, tree: Tree, logits: Tensor) -> Tensor:
        """The target's own choice [R, N] after every valid node of ``tree``, from processed ``logits`` [R, N, V]."""
        return self._ops.picks(self, tree, logits)

    def match(self, tree: Tree, picks: Tensor) -> Outcome:
        """The outcome that accepts nodes as long as they equal ``picks`` [R, N], the target's token after each node."""
        return self._ops.match(tree, picks)

    def argmax(self, logits: Tensor) -> Tensor:
        """The first of the largest processed ``logits`` [R, n, V], however rows sample."""
        return self._ops.argmax(logits)

    def warp(self, logits: Tensor) -> Tensor:
        """Scores [R, n, V] whose exponentials are the distributions of tokens up to a factor, from processed
        ``logits``.
        """
        return self._ops.warp(self.sampling, logits)

    def admit(self, rows: Sequence[int], requests: Sequence[Request], *, active: bool = True) -> None:
        """Put ``requests`` into ``rows``, replacing what was there; rows that are not active take no part in steps."""
        index = torch.tensor(list(rows), device=self.device)
        longest = max(len(request.tokens) for request in requests)
        lengths = [len(request.tokens) for request in requests]
        padded = torch.tensor([[*request.tokens, *[0] * (longest - len(request.tokens))] for request in requests])
        self.tokens[index, :longest] = padded.to(self.device)
        stops = [[*r.stop_tokens, *[-1] * (MAX_STOP_TOKENS - len(r.stop_tokens))] for r in requests]
        drafts = [self.max_depth if r.num_draft_tokens is None else r.num_draft_tokens for r in requests]

        def put(into: Tensor, values: Sequence[int] | Sequence[list[int]]) -> None:
            into[index] = torch.tensor(values, device=self.device, dtype=into.dtype)

        put(self.length, lengths)
        put(self.limit, [n + r.max_tokens for n, r in zip(lengths, requests, strict=True)])
        put(self.steps, [0] * len(requests))
        put(self.num_draft, drafts)
        put(self.stop, stops)
        put(self.finish, [int(Finish.RUNNING)] * len(requests))
        put(self.failed, [0] * len(requests))
        self.active[index] = active
        self.sampling.assign(rows, [request.sampling for request in requests])
        self.processing.assign(rows, [request.processors for request in requests], [r.tokens for r in requests])
        for row, request in zip(rows, requests, strict=True):
            self.requests[row] = request
        self._flag()

    def activate(self, rows: Tensor) -> None:
        """Let ``rows`` [B] take part in steps: their prompts are read."""
        self.steps.index_fill_(0, rows, 0)
        self.active.index_fill_(0, rows, True)

    def _flag(self) -> None:
        """Update the host's flags of what any row uses."""
        known = [request for request in self.requests if request is not None]
        asked = [request.logprobs for request in known if request.logprobs is not None]
        self.max_logprobs = max(asked) if asked else None
        keeping = [request is not None and request.keep_scores for request in self.requests]
        self.rows_with_scores = tuple(row for row, keeps in enumerate(keeping) if keeps)
        if not asked:
            self.step_logprobs = None
        self.shows_drafts = tuple(row for row, one in enumerate(self.requests) if one is not None and one.drafts)
        if not self.shows_drafts:
            self.step_drafts = None

    @property
    def flags(self) -> tuple[int, ...]:
        """What a step branches on at the host: with equal flags, it does the same operations on the same tensors."""
        return (*self.processing.flags, *self.sampling.flags, self.early_stop.rule is not None)

    @property
    def wants_tensors(self) -> bool:
        """Whether steps create new tensors, in ``step_logprobs`` or ``step_drafts``."""
        return self.max_logprobs is not None or bool(self.shows_drafts)

    def release(self, rows: Sequence[int]) -> None:
        """Stop ``rows`` where they are; their slots may be reused."""
        self.active[torch.tensor(list(rows), device=self.device)] = False
        for row in rows:
            self.requests[row] = None
        self.processing.release(rows)
        self._flag()

    def extend(self, tree: Tree, outcome: Outcome, scores: Scores) -> Outcome:
        """Append what was decided, clipped at the first stop token and at the limit; returns the clipped outcome.

        ``results`` then say what the step did. Log-probabilities are looked up in ``scores`` for rows that ask for
        them, the draft is kept for rows that ask to see it, and rows that took a token from logits that are not
        finite, or after which their constraints leave none, are marked as failed.
        """
        outcome = self._ops.append(self, tree, outcome)
        self._ops.find_not_finite(self, outcome, scores.logits)
        if scores.mask is not None:  # after the other, which takes a row without a token for one that is not finite
            rows, starved = scores.mask.rows, outcome.took(scores.mask.starved, scores.mask.rows)
            self.failed[rows] = torch.where(starved, int(Failure.NO_TOKEN), self.failed[rows])
        if self.max_logprobs is not None:
            found = self._ops.gather_logprobs(self, outcome, scores)
            self.step_logprobs = replace(found, kept=self._kept(outcome, scores)) if self.rows_with_scores else found
        if self.shows_drafts:
            warped = self.warp(scores.logits)
            self.step_drafts = StepDrafts.of(tree, outcome, self.shows_drafts, scores.raw_logits, warped)
        return outcome

    def _kept(self, outcome: Outcome, scores: Scores) -> KeptScores:
        """Logits and scores before each token that ``outcome`` says, of the rows that keep them."""
        at = outcome.nodes[..., None].expand(-1, -1, scores.logits.shape[-1])
        processed = scores.logits.gather(1, at)
        greedy = (self.sampling.temperature == 0)[:, None, None]
        rows = list(self.rows_with_scores)
        return KeptScores(
            rows=self.rows_with_scores,
            logits=scores.raw_logits.gather(1, at)[rows].float(),
            scores=torch.where(greedy, processed, self.warp(processed))[rows].float(),
        )
