"""The sequences in progress: fixed rows on the device, each advancing at its own rate.

R rows, T sequence capacity, N nodes, D draft depth, E stop tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.logprobs import StepLogprobs, gather_logprobs
from paceline.core.noise import Key, Noise, Stream
from paceline.core.processing import PathTokens, ProcessingState
from paceline.core.request import MAX_STOP_TOKENS, Request
from paceline.core.sampling import SamplingState
from paceline.core.scores import Scores, TokenMask
from paceline.core.step import HEADER, Finish
from paceline.core.tree import NoDraft, Outcome, Tree, path_tokens


class Batch:
    """R rows of tokens, their limits, options and noise. All state is tensors that steps change in place."""

    def __init__(
        self, *, rows: int, max_length: int, max_depth: int, vocab_size: int, noise: Noise, device: torch.device
    ) -> None:
        def integers(*shape: int, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.int64, device=device)

        self.rows, self.max_length, self.max_depth = rows, max_length, max_depth
        self.noise = noise
        self.requests: list[Request | None] = [None] * rows
        self.sampling = SamplingState(rows, device)
        self.processing = ProcessingState(rows=rows, vocab_size=vocab_size, device=device)
        self.tokens = integers(rows, max_length + 1)  # the last column takes the writes that must change nothing
        self.length = integers(rows, fill=1)
        self.limit = integers(rows, fill=1)
        self.steps = integers(rows)  # steps since admission: own noise is keyed by it
        self.num_draft = integers(rows)
        self.stop = integers(rows, MAX_STOP_TOKENS, fill=-1)
        self.finish = integers(rows)
        self.active = torch.zeros(rows, dtype=torch.bool, device=device)
        width = HEADER + 2 * (max_depth + 1)
        self.results = integers(rows * (width + 1))  # of the last step: what the host reads, in one piece
        self.report = self.results[: rows * width].view(rows, width)
        self.failed = self.results[rows * width :]  # [R] whether the row's constraints left it no token
        self.step_logprobs: StepLogprobs | None = None  # of the last step, where a row wants them
        self._flag()

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @property
    def root(self) -> Tensor:
        """The newest known token of each row [R]."""
        return self.tokens.gather(1, self.length[:, None] - 1)[:, 0]

    @property
    def draft_room(self) -> Tensor:
        """Draft tokens that could still matter to each row [R]: its own cap, and what its limit leaves."""
        return torch.minimum(self.num_draft, self.limit - self.length - 1).clamp(min=0)

    def begin_chain(self, depth: int, *, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """The tokens and the validity [R, 1 + depth] of a chain that is to be drafted: its roots, and zeros.

        A drafter that reads at most ``longest`` tokens of a sequence drafts none beyond the one that follows them.
        """
        room = self.draft_room if longest is None else torch.minimum(self.draft_room, longest - self.length + 1)
        active = self.active[:, None]
        within = torch.arange(1, depth + 1, device=self.device) <= room[:, None]
        valid = torch.cat([active, within & active], dim=1)
        tokens = torch.zeros_like(valid, dtype=torch.int64)
        tokens[:, 0] = self.root
        return tokens, valid

    def key(self, position: Tensor, stream: Stream, node: Tensor | int = 0, stage: int = 0) -> Key:
        """Key of a choice at ``position`` [R, ...] of each row; the step enters for every stream but the target's."""
        shape = (self.rows,) + (1,) * (position.dim() - 1)
        seed = self.sampling.seed.view(shape)
        if stream is Stream.TARGET:
            return Key(seed=seed, position=position, stream=stream)
        return Key(seed=seed, position=position, stream=stream, step=self.steps.view(shape), node=node, stage=stage)

    def process(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """``logits`` [R, n, V] after every row's logits processors; as they are where no row has any.

        ``drafted`` [R, n, d] are the tokens between each row's sequence and the token that the logits are for, -1
        after the last. What is changed comes in single precision at least.
        """
        return self._apply(logits, drafted) if self.processing.any else logits

    def process_tree(self, logits: Tensor, tree: Tree) -> Tensor:
        """``process`` for the ``logits`` [R, N, V] after every node of ``tree``."""
        return self._apply_at(logits, tree) if self.processing.any else logits

    def _apply(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """``process`` where some row has processors."""
        return self.processing.apply(logits, PathTokens(self.tokens[:, : self.max_length], self.length, drafted))

    def _apply_at(self, logits: Tensor, tree: Tree) -> Tensor:
        return self._apply(logits, path_tokens(tree))

    def pick(self, logits: Tensor, position: Tensor) -> Tensor:
        """The target's own choice [R, n] from processed ``logits`` [R, n, V] for the token at ``position`` [R, n]."""
        if not self.sampling.any_sampled:
            return self.argmax(logits)
        return self.noise.choose(self.warp(logits), self.key(position, Stream.TARGET))

    def picks(self, tree: Tree, logits: Tensor) -> Tensor:
        """The target's own choice [R, N] after every node of ``tree``, from processed ``logits`` [R, N, V]."""
        if tree.chain or not self.sampling.any_sampled:
            return self.pick(logits, self.length[:, None] + tree.depth)
        levels = self.length[:, None] + torch.arange(tree.max_depth + 1, device=self.device)
        key = self.key(levels, Stream.TARGET)
        return self.noise.choose_at(self.warp(logits), key, tree.depth)

    def argmax(self, logits: Tensor) -> Tensor:
        """The first of the largest processed ``logits`` [R, n, V], however rows sample."""
        return logits.argmax(-1)

    def warp(self, logits: Tensor) -> Tensor:
        """Scores [R, n, V] whose exponentials are the distributions of tokens up to a factor, from processed
        ``logits``.
        """
        return self.sampling.warp(logits)

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

    @property
    def num_logprobs(self) -> list[int | None]:
        """How many of the likeliest tokens' log-probabilities each row asks for; None for none at all."""
        return [None if request is None else request.logprobs for request in self.requests]

    def _flag(self) -> None:
        """Update the host's flags of what any row uses."""
        known = [request for request in self.requests if request is not None]
        asked = [request.logprobs for request in known if request.logprobs is not None]
        self._num_logprobs = max(asked) if asked else None
        if not asked:
            self.step_logprobs = None

    @property
    def flags(self) -> tuple[int, ...]:
        """What a step branches on at the host: with equal flags, it does the same operations on the same tensors."""
        return (*self.processing.flags, *self.sampling.flags)

    @property
    def wants_logprobs(self) -> bool:
        """Whether steps create new tensors, in ``step_logprobs``."""
        return self._num_logprobs is not None

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
        them, and rows that took a token after which their constraints leave none are marked as failed.
        """
        outcome = self._append(tree, outcome)
        if scores.mask is not None:
            self._mark_failed(outcome, scores.mask)
        if self._num_logprobs is not None:
            self.step_logprobs = self._gather_logprobs(outcome, scores)
        return outcome

    def _append(self, tree: Tree, outcome: Outcome) -> Outcome:
        depth = torch.arange(tree.max_depth + 1, device=self.device)
        accepted = outcome.num_committed - 1
        drafted = tree.tokens.gather(1, torch.nn.functional.pad(outcome.path, (0, 1)).clamp(min=0))
        emitted = torch.where(depth == accepted[:, None], outcome.next[:, None], drafted)  # [R, D + 1]

        stops = (emitted[..., None] == self.stop[:, None]).any(-1) & (depth < outcome.num_committed[:, None])
        until = torch.where(stops.any(-1), stops.int().argmax(-1) + 1, outcome.num_committed)
        num = torch.minimum(until, self.limit - self.length)
        num = torch.where(self.active, num, 0)
        stopped = (stops & (depth < num[:, None])).any(-1)
        full = self.length + num >= self.limit
        no_draft_reason = self._no_draft_reasons(tree)

        into = torch.where(depth < num[:, None], self.length[:, None] + depth, self.max_length)
        self.tokens.scatter_(1, into, emitted)
        self.processing.count(emitted, depth < num[:, None])
        self.length.add_(num)
        self.steps.add_(1)  # of idle rows too: no key is used twice, and admission starts anew
        ended = torch.where(stopped, int(Finish.STOP), torch.where(full, int(Finish.LENGTH), int(Finish.RUNNING)))
        self.finish.copy_(torch.where(self.active, ended, self.finish))
        self.active.logical_and_(self.finish == int(Finish.RUNNING))
        clipped = Outcome(path=outcome.path, num_committed=num, next=outcome.next, picks=outcome.picks)
        self._write_report(tree, clipped, accepted, emitted, no_draft_reason)
        return clipped

    def _mark_failed(self, outcome: Outcome, mask: TokenMask) -> None:
        """Mark rows that took a token, as ``outcome`` says, after which their constraints leave none."""
        nodes = torch.nn.functional.pad(outcome.path[mask.rows], (1, 0)).clamp(min=0)  # [r, D + 1]
        taken = torch.arange(nodes.shape[1], device=self.device) < outcome.num_committed[mask.rows, None]
        self.failed[mask.rows] = (mask.starved.gather(1, nodes) & taken).any(-1).long()

    def _gather_logprobs(self, outcome: Outcome, scores: Scores) -> StepLogprobs:
        """Log-probabilities of the tokens that ``outcome``, already appended, decided."""
        assert self._num_logprobs is not None
        nodes = torch.nn.functional.pad(outcome.path, (1, 0)).clamp(min=0)  # [R, D + 1] the node before each token
        position = (self.length - outcome.num_committed)[:, None] + torch.arange(nodes.shape[1], device=self.device)
        tokens = self.tokens.gather(1, position.clamp(max=self.max_length))
        at = nodes[..., None].expand(-1, -1, scores.logits.shape[-1])
        warped = self.warp(scores.logits.gather(1, at))
        return gather_logprobs(scores.raw_logits.gather(1, at), warped, tokens, self._num_logprobs)

    def _no_draft_reasons(self, tree: Tree) -> Tensor:
        """Why each row's tree has the root alone [R], values of NoDraft; computed before tokens are appended."""
        none = torch.where(self.limit - self.length <= 1, int(NoDraft.LIMIT), int(tree.no_draft_reason))
        none = torch.where(self.num_draft == 0, int(NoDraft.CAPPED), none)
        if tree.num_nodes == 1:
            none = torch.full_like(none, int(tree.no_draft_reason))
        return torch.where(tree.valid.sum(-1) > 1, int(NoDraft.DRAFTED), none)

    def _write_report(
        self, tree: Tree, outcome: Outcome, accepted: Tensor, emitted: Tensor, no_draft_reason: Tensor
    ) -> None:
        num = outcome.num_committed
        ends = torch.nn.functional.pad(outcome.path, (1, 0)).gather(1, accepted.clamp(min=0)[:, None])  # [R, 1]
        children = ((tree.parents == ends) & tree.valid).any(-1)
        origin = tree.origin.gather(1, torch.nn.functional.pad(outcome.path, (0, 1)).clamp(min=0))
        head = (
            num,
            torch.minimum(accepted, num),
            tree.valid.sum(-1) - 1,
            self.finish,
            (~children).long(),
            no_draft_reason,
        )
        width, ends = tree.max_depth + 1, HEADER + self.max_depth + 1
        self.report[:, :HEADER].copy_(torch.stack(head, dim=1))
        self.report[:, HEADER : HEADER + width].copy_(emitted)
        self.report[:, ends : ends + width].copy_(origin)
