"""The operations of a step around the model's forward, and their plain tensor implementation.

R rows, N nodes of a tree, n nodes of a call, D draft depth, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from paceline.core.batch_state import BatchState
from paceline.core.columns import Columns
from paceline.core.logprobs import StepLogprobs, gather_logprobs
from paceline.core.noise import Noise, Philox, Stream
from paceline.core.processing import PathTokens
from paceline.core.prompt_lookup import NgramOptions, ngram_chain
from paceline.core.sampling import SamplingState
from paceline.core.scores import Scores
from paceline.core.step import HEADER, Failure, Finish
from paceline.core.tree import NoDraft, Outcome, Tree, along_path, follow, path_tokens


class Ops(ABC):
    """What drafts, samples, appends and counts by. All implementations give the results of TensorOps."""

    noise: Noise  # of a batch that is given none

    @abstractmethod
    def idle(self, batch: BatchState) -> bool:
        """See Batch.idle."""

    @abstractmethod
    def begin_chain(self, batch: BatchState, depth: int, longest: int | None) -> tuple[Tensor, Tensor]:
        """See Batch.begin_chain."""

    @abstractmethod
    def ngram_chain(self, batch: BatchState, depth: int, options: NgramOptions) -> tuple[Tensor, Tensor]:
        """See Batch.ngram_chain."""

    @abstractmethod
    def process(self, batch: BatchState, logits: Tensor, drafted: Tensor) -> Tensor:
        """See Batch.process; some row has a logits processor."""

    @abstractmethod
    def process_tree(self, batch: BatchState, logits: Tensor, tree: Tree) -> Tensor:
        """See Batch.process_tree; some row has a logits processor."""

    @abstractmethod
    def pick(self, batch: BatchState, logits: Tensor, position: Tensor) -> Tensor:
        """See Batch.pick."""

    @abstractmethod
    def picks(self, batch: BatchState, tree: Tree, logits: Tensor) -> Tensor:
        """See Batch.picks."""

    @abstractmethod
    def match(self, tree: Tree, picks: Tensor) -> Outcome:
        """See Batch.match."""

    @abstractmethod
    def argmax(self, logits: Tensor) -> Tensor:
        """The first of the largest ``logits`` [R, n, V]: [R, n]."""

    @abstractmethod
    def warp(self, sampling: SamplingState, logits: Tensor) -> Tensor:
        """See SamplingState.warp."""

    @abstractmethod
    def append(self, batch: BatchState, tree: Tree, outcome: Outcome) -> Outcome:
        """Append what ``outcome`` decided of ``tree`` and write the report; returns the clipped outcome."""

    @abstractmethod
    def find_not_finite(self, batch: BatchState, outcome: Outcome, logits: Tensor) -> None:
        """Mark rows as failed that took a token, as ``outcome`` says, chosen from ``logits`` [R, N, V] that hold NaN or
        infinity, or exclude every token.
        """

    @abstractmethod
    def gather_logprobs(self, batch: BatchState, outcome: Outcome, scores: Scores) -> StepLogprobs:
        """Log-probabilities of the tokens that ``outcome``, already appended, decided."""

    @abstractmethod
    def record(self, counters: Columns, tree: Tree, outcome: Outcome) -> None:
        """Count one step of every row in the counters of core/stats."""

    @abstractmethod
    def queue_states(
        self,
        states: Sequence[Tensor],
        path: Tensor | None,
        first: Tensor | None,
        until: Tensor,
        queue: Tensor,
        count: Tensor,
    ) -> None:
        """Append states of the root and of ``path`` [R, D] to ``queue`` [R, C + 1, H], which holds ``count`` [R].

        ``states`` [R, N, h] are those of all nodes, side by side in the queue; ``path`` None: nodes of a chain. Taken
        are those from ``first`` [R] (None: 0, the root) up to and without ``until`` [R]; there must be room. What the
        queue has after its last state is undefined.
        """

    @abstractmethod
    def keep_last(self, states: Tensor, path: Tensor | None, num: Tensor, kept: Tensor) -> None:
        """Append ``num`` [R] states to the last ones of each row, ``kept`` [R, s, H], which stay s.

        They are the first of ``states`` [R, N, H], or, with ``path`` [R, D], those of the root and of the path.
        """


@final
class TensorOps(Ops):
    """Plain tensor operations, on any device."""

    def __init__(self) -> None:
        self.noise = Philox()

    def idle(self, batch: BatchState) -> bool:
        return False

    def begin_chain(self, batch: BatchState, depth: int, longest: int | None) -> tuple[Tensor, Tensor]:
        if not depth:
            return batch.root[:, None], batch.active[:, None].clone()  # which deciding changes
        room = batch.draft_room if longest is None else torch.minimum(batch.draft_room, longest - batch.length + 1)
        active = batch.active[:, None]
        within = torch.arange(1, depth + 1, device=batch.device) <= room[:, None]
        valid = torch.cat([active, within & active], dim=1)
        tokens = torch.zeros_like(valid, dtype=torch.int64)
        tokens[:, 0] = batch.root
        return tokens, valid

    def ngram_chain(self, batch: BatchState, depth: int, options: NgramOptions) -> tuple[Tensor, Tensor]:
        return ngram_chain(batch, depth, options)

    def process(self, batch: BatchState, logits: Tensor, drafted: Tensor) -> Tensor:
        return batch.processing.apply(logits, PathTokens(batch.tokens[:, : batch.max_length], batch.length, drafted))

    def process_tree(self, batch: BatchState, logits: Tensor, tree: Tree) -> Tensor:
        return self.process(batch, logits, path_tokens(tree))

    def pick(self, batch: BatchState, logits: Tensor, position: Tensor) -> Tensor:
        if not batch.sampling.any_sampled:
            return self.argmax(logits)
        return batch.noise.choose(self.warp(batch.sampling, logits), batch.key(position, Stream.TARGET))

    def picks(self, batch: BatchState, tree: Tree, logits: Tensor) -> Tensor:
        if tree.chain or not batch.sampling.any_sampled:
            return self.pick(batch, logits, batch.length[:, None] + tree.depth)
        levels = batch.length[:, None] + torch.arange(tree.max_depth + 1, device=batch.device)
        key = batch.key(levels, Stream.TARGET)
        return batch.noise.choose_at(self.warp(batch.sampling, logits), key, tree.depth)

    def match(self, tree: Tree, picks: Tensor) -> Outcome:
        leaf, path, length = follow(tree, tree.tokens == picks.gather(1, tree.parents.clamp(min=0)))
        return Outcome(path=path, num_committed=length + 1, next=picks.gather(1, leaf[:, None])[:, 0], picks=picks)

    def argmax(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def warp(self, sampling: SamplingState, logits: Tensor) -> Tensor:
        return sampling.warp(logits)

    def append(self, batch: BatchState, tree: Tree, outcome: Outcome) -> Outcome:
        depth = torch.arange(tree.max_depth + 1, device=batch.device)
        accepted = outcome.num_committed - 1
        drafted = tree.tokens.gather(1, torch.nn.functional.pad(outcome.path, (0, 1)).clamp(min=0))
        emitted = torch.where(depth == accepted[:, None], outcome.next[:, None], drafted)  # [R, D + 1]

        stops = (emitted[..., None] == batch.stop[:, None]).any(-1) & (depth < outcome.num_committed[:, None])
        until = torch.where(stops.any(-1), stops.int().argmax(-1) + 1, outcome.num_committed)
        num = torch.minimum(until, batch.limit - batch.length)
        num = torch.where(batch.active, num, 0)
        stopped = (stops & (depth < num[:, None])).any(-1)
        full = batch.length + num >= batch.limit
        no_draft_reason = _no_draft_reasons(batch, tree)

        into = torch.where(depth < num[:, None], batch.length[:, None] + depth, batch.max_length)
        batch.tokens.scatter_(1, into, emitted)
        batch.processing.count(emitted, depth < num[:, None])
        batch.length.add_(num)
        batch.steps.add_(1)  # of idle rows too: no key is used twice, and admission starts anew
        ended = torch.where(stopped, int(Finish.STOP), torch.where(full, int(Finish.LENGTH), int(Finish.RUNNING)))
        batch.finish.copy_(torch.where(batch.active, ended, batch.finish))
        batch.active.logical_and_(batch.finish == int(Finish.RUNNING))
        clipped = Outcome(path=outcome.path, num_committed=num, next=outcome.next, picks=outcome.picks)
        _write_report(batch, tree, clipped, accepted, emitted, no_draft_reason)
        return clipped

    def find_not_finite(self, batch: BatchState, outcome: Outcome, logits: Tensor) -> None:
        odd = ~logits.amax(-1).isfinite()  # the largest of values with NaN is NaN
        batch.failed.masked_fill_(outcome.took(odd), int(Failure.NOT_FINITE))

    def gather_logprobs(self, batch: BatchState, outcome: Outcome, scores: Scores) -> StepLogprobs:
        assert batch.max_logprobs is not None
        nodes = outcome.nodes
        position = (batch.length - outcome.num_committed)[:, None] + torch.arange(nodes.shape[1], device=batch.device)
        tokens = batch.tokens.gather(1, position.clamp(max=batch.max_length))
        at = nodes[..., None].expand(-1, -1, scores.logits.shape[-1])
        warped = self.warp(batch.sampling, scores.logits.gather(1, at))
        return gather_logprobs(scores.raw_logits.gather(1, at), warped, tokens, batch.max_logprobs)

    def record(self, counters: Columns, tree: Tree, outcome: Outcome) -> None:
        steps, emitted, drafted, accepted = counters.tensors
        steps.add_(outcome.num_committed > 0)
        emitted.add_(outcome.num_committed)
        depths = torch.arange(1, tree.max_depth + 1, device=tree.tokens.device)
        proposed = ((tree.depth[:, None, :] == depths[None, :, None]) & tree.valid[:, None, :]).any(-1)
        # Of the emitted tokens the last is the target's own, unless an accepted token ended the sequence.
        kept = (outcome.path >= 0) & (depths <= outcome.num_committed[:, None])
        drafted[:, : tree.max_depth].add_(proposed)
        accepted[:, : tree.max_depth].add_(kept)

    def queue_states(
        self,
        states: Sequence[Tensor],
        path: Tensor | None,
        first: Tensor | None,
        until: Tensor,
        queue: Tensor,
        count: Tensor,
    ) -> None:
        joined = states[0] if len(states) == 1 else torch.cat(tuple(states), dim=-1)
        if path is not None:
            joined = along_path(joined, path)
        first = torch.zeros_like(until) if first is None else first
        index = torch.arange(joined.shape[1], device=joined.device)
        added = (index >= first[:, None]) & (index < until[:, None])
        at = torch.where(added, count[:, None] + index - first[:, None], queue.shape[1] - 1)
        queue.index_put_((torch.arange(len(queue), device=queue.device)[:, None], at), joined)
        count.add_(until - first)

    def keep_last(self, states: Tensor, path: Tensor | None, num: Tensor, kept: Tensor) -> None:
        joined = torch.cat((kept, states if path is None else along_path(states, path)), dim=1)  # [R, s + n, H]
        last = num[:, None] + torch.arange(kept.shape[1], device=kept.device)
        kept.copy_(joined.gather(1, last[..., None].expand(-1, -1, joined.shape[-1])))


def _no_draft_reasons(batch: BatchState, tree: Tree) -> Tensor:
    """Why each row's tree has the root alone [R], values of NoDraft; computed before tokens are appended."""
    none = torch.where(batch.limit - batch.length <= 1, int(NoDraft.LIMIT), int(tree.no_draft_reason))
    none = torch.where(batch.early_stop.notes != 0, int(NoDraft.DECLINED), none)  # ended before its first token
    none = torch.where(batch.planned == 0, int(NoDraft.OFF), none)
    none = torch.where(batch.num_draft == 0, int(NoDraft.CAPPED), none)
    if tree.num_nodes == 1:
        none = torch.full_like(none, int(tree.no_draft_reason))
    return torch.where(tree.valid.sum(-1) > 1, int(NoDraft.DRAFTED), none)


def _write_report(
    batch: BatchState, tree: Tree, outcome: Outcome, accepted: Tensor, emitted: Tensor, no_draft_reason: Tensor
) -> None:
    num = outcome.num_committed
    ends = torch.nn.functional.pad(outcome.path, (1, 0)).gather(1, accepted.clamp(min=0)[:, None])  # [R, 1]
    children = ((tree.parents == ends) & tree.valid).any(-1)
    origin = tree.origin.gather(1, torch.nn.functional.pad(outcome.path, (0, 1)).clamp(min=0))
    head = (
        num,
        torch.minimum(accepted, num),
        tree.valid.sum(-1) - 1,
        batch.finish,
        (~children).long(),
        no_draft_reason,
        batch.early_stop.notes,
    )
    width, ends = tree.max_depth + 1, HEADER + batch.max_depth + 1
    batch.report[:, :HEADER].copy_(torch.stack(head, dim=1))
    batch.early_stop.notes.zero_()
    batch.report[:, HEADER : HEADER + width].copy_(emitted)
    batch.report[:, ends : ends + width].copy_(origin)
