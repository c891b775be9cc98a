"""The operations of a step (core/ops) by the CPU kernel."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from paceline.core.batch_state import BatchState
from paceline.core.columns import Columns
from paceline.core.logprobs import StepLogprobs
from paceline.core.noise import Noise, Philox
from paceline.core.ops import Ops, TensorOps
from paceline.core.prompt_lookup import NgramOptions
from paceline.core.sampling import SamplingState
from paceline.core.scores import Scores
from paceline.core.step import Failure
from paceline.core.tree import Outcome, Tree
from paceline.kernels.cpu import batch as step
from paceline.kernels.cpu import sampling as kernel
from paceline.kernels.cpu.instruction_set import current_set, load_kernel
from paceline.kernels.cpu.noise import KernelNoise
from paceline.kernels.cpu.sampling import ProcessorTensors


def is_philox(noise: Noise) -> bool:
    """Whether ``noise`` is the Philox noise that the kernel generates itself."""
    return type(noise) is Philox


@final
class CpuOps(Ops):
    """By the kernel; by tensor operations for noise other than Philox and logits of another size than the vocabulary.

    Raises KernelError if the kernel cannot be built.
    """

    def __init__(self) -> None:
        self.isa = current_set()
        load_kernel(self.isa)
        self.noise = Philox(KernelNoise())
        self._tensor_ops = TensorOps()

    def idle(self, batch: BatchState) -> bool:
        return not bool(batch.active.any())  # which waits for nothing: operations on the CPU are done when called

    def begin_chain(self, batch: BatchState, depth: int, longest: int | None) -> tuple[Tensor, Tensor]:
        return step.begin_chain(self.isa, batch.columns, depth, batch.max_length if longest is None else longest)

    def ngram_chain(self, batch: BatchState, depth: int, options: NgramOptions) -> tuple[Tensor, Tensor]:
        sizes, rules = (options.max_ngram, options.min_ngram), (options.first, options.wrap, options.crop)
        return step.ngram_chain(self.isa, batch.columns, depth, *sizes, *rules)

    def process(self, batch: BatchState, logits: Tensor, drafted: Tensor) -> Tensor:
        if not _fits(batch, logits):
            return self._tensor_ops.process(batch, logits, drafted)
        processors = ProcessorTensors.of(batch.processing, batch.tokens, batch.length)
        return kernel.process(self.isa, processors, logits, drafted)

    def process_tree(self, batch: BatchState, logits: Tensor, tree: Tree) -> Tensor:
        if not _fits(batch, logits):
            return self._tensor_ops.process_tree(batch, logits, tree)
        processors = ProcessorTensors.of(batch.processing, batch.tokens, batch.length)
        depth, ancestors = (None, None) if tree.chain else (tree.depth, tree.ancestors)
        return kernel.process_tree(self.isa, processors, logits, tree.tokens, depth, ancestors, tree.max_depth)

    def pick(self, batch: BatchState, logits: Tensor, position: Tensor) -> Tensor:
        if not is_philox(batch.noise):
            return self._tensor_ops.pick(batch, logits, position)
        return kernel.sample(self.isa, batch.sampling.columns, logits, position, None, None)

    def picks(self, batch: BatchState, tree: Tree, logits: Tensor) -> Tensor:
        if not is_philox(batch.noise):
            return self._tensor_ops.picks(batch, tree, logits)
        return kernel.sample(self.isa, batch.sampling.columns, logits, tree.depth, batch.length, tree.valid)

    def match(self, tree: Tree, picks: Tensor) -> Outcome:
        draft = tree.tokens, tree.parents, tree.depth, tree.valid
        path, num_committed, following = step.match(self.isa, *draft, picks, tree.max_depth)
        return Outcome(path=path, num_committed=num_committed, next=following, picks=picks)

    def argmax(self, logits: Tensor) -> Tensor:
        return kernel.argmax(self.isa, logits)

    def warp(self, sampling: SamplingState, logits: Tensor) -> Tensor:
        return kernel.warp(self.isa, sampling.columns, logits)

    def append(self, batch: BatchState, tree: Tree, outcome: Outcome) -> Outcome:
        counts = batch.processing.counts if batch.processing.any_counts else None
        reason = int(tree.no_draft_reason)
        num = step.extend(self.isa, batch.columns, counts, *_decided(tree, outcome), tree.max_depth, reason)
        return Outcome(path=outcome.path, num_committed=num, next=outcome.next, picks=outcome.picks)

    def find_not_finite(self, batch: BatchState, outcome: Outcome, logits: Tensor) -> None:
        kernel.find_not_finite(
            self.isa, logits, outcome.path, outcome.num_committed, int(Failure.NOT_FINITE), batch.failed
        )

    def gather_logprobs(self, batch: BatchState, outcome: Outcome, scores: Scores) -> StepLogprobs:
        num_top = torch.tensor([-1 if count is None else count for count in batch.num_logprobs])
        top = min(batch.max_logprobs or 0, scores.logits.shape[-1])

        def of(logits: Tensor, warped: bool) -> tuple[Tensor, Tensor, Tensor]:
            rows = (batch.tokens, batch.length, num_top)
            return kernel.logprobs(
                self.isa, batch.sampling.columns, warped, *rows, logits, outcome.path, outcome.num_committed, top
            )

        raw, raw_tokens, raw_top = of(scores.raw_logits, False)
        processed, processed_tokens, processed_top = of(scores.logits, True)
        return StepLogprobs(
            raw=raw,
            processed=processed,
            raw_tokens=raw_tokens,
            raw_top=raw_top,
            processed_tokens=processed_tokens,
            processed_top=processed_top,
        )

    def record(self, counters: Columns, tree: Tree, outcome: Outcome) -> None:
        step.record(self.isa, counters, *_decided(tree, outcome), tree.max_depth)

    def queue_states(
        self,
        states: Sequence[Tensor],
        path: Tensor | None,
        first: Tensor | None,
        until: Tensor,
        queue: Tensor,
        count: Tensor,
    ) -> None:
        if any(one.dtype != queue.dtype for one in states):
            self._tensor_ops.queue_states(states, path, first, until, queue, count)
        else:
            step.queue_states(self.isa, list(states), path, first, until, queue, count)

    def keep_last(self, states: Tensor, path: Tensor | None, num: Tensor, kept: Tensor) -> None:
        if states.dtype != kept.dtype:
            self._tensor_ops.keep_last(states, path, num, kept)
        else:
            step.keep_last(self.isa, states, path, num, kept)


def _fits(batch: BatchState, logits: Tensor) -> bool:
    """Whether the kernel can process ``logits``."""
    return logits.dtype in kernel.DTYPES and logits.shape[-1] == batch.processing.vocab_size


def _decided(tree: Tree, outcome: Outcome) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tree and the decision, as ``extend`` and ``record`` take them."""
    shape = tree.tokens, tree.parents, tree.depth, tree.valid, tree.origin
    return *shape, outcome.path, outcome.num_committed, outcome.next
