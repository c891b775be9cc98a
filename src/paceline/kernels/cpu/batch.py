"""Batch and Stats by the CPU kernel: beginning a chain, sampling, extending the sequences, counting.

R rows, N nodes, D depth of the tree, V vocabulary.
"""

import ctypes
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.logprobs import StepLogprobs
from paceline.core.noise import Noise
from paceline.core.scores import Scores
from paceline.core.stats import Stats
from paceline.core.step import HEADER
from paceline.core.tree import Outcome, Tree
from paceline.kernels.cpu.build import load_kernel
from paceline.kernels.cpu.logprobs import KernelLogprobs
from paceline.kernels.cpu.processing import Processor
from paceline.kernels.cpu.sampling import KernelSampler, is_philox
from paceline.kernels.cpu.structs import Counters, Decision, RowView, Sequences


@final
class CpuBatch(Batch):
    """A batch on the CPU that samples and extends its sequences by the kernel, with the results of ``Batch``.

    Under torch.compile, and for sampling with noise other than Philox, it uses the torch operations. Raises KernelError
    if the kernel cannot be built.
    """

    def __init__(
        self, *, rows: int, max_length: int, max_depth: int, vocab_size: int, noise: Noise, device: torch.device
    ) -> None:
        super().__init__(
            rows=rows,
            max_length=max_length,
            max_depth=max_depth,
            vocab_size=vocab_size,
            noise=noise,
            device=device,
        )
        self._run, self._begin_chain = load_kernel().paceline_extend, load_kernel().paceline_begin_chain
        self._run.restype = self._begin_chain.restype = None
        self._sequences = Sequences(
            rows=rows,
            width=self.tokens.shape[1],
            stops=self.stop.shape[1],
            max_depth=max_depth,
            head=HEADER,
            vocab=vocab_size,
            tokens=self.tokens.data_ptr(),
            length=self.length.data_ptr(),
            limit=self.limit.data_ptr(),
            steps=self.steps.data_ptr(),
            num_draft=self.num_draft.data_ptr(),
            stop=self.stop.data_ptr(),
            finish=self.finish.data_ptr(),
            report=self.report.data_ptr(),
            active=self.active.data_ptr(),
        )
        self._sampler = KernelSampler(sampling=self.sampling)
        self._processor = Processor(state=self.processing, tokens=self.tokens, length=self.length)
        self._logprobs = KernelLogprobs(self)
        self._is_philox = is_philox(noise)

    def _apply(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """As ``Batch``."""
        if torch.compiler.is_compiling() or not self._processor.fits(logits):
            return super()._apply(logits, drafted)
        return self._processor.process(logits, drafted)

    def _apply_at(self, logits: Tensor, tree: Tree) -> Tensor:
        """As ``Batch``."""
        if torch.compiler.is_compiling() or not self._processor.fits(logits):
            return super()._apply_at(logits, tree)
        return self._processor.process_tree(logits, tree)

    def pick(self, logits: Tensor, position: Tensor) -> Tensor:
        """As ``Batch``."""
        if torch.compiler.is_compiling() or not self._is_philox:
            return super().pick(logits, position)
        return self._sampler.pick(logits, position)

    def picks(self, tree: Tree, logits: Tensor) -> Tensor:
        """As ``Batch``."""
        if torch.compiler.is_compiling() or not self._is_philox:
            return super().picks(tree, logits)
        return self.pick(logits, self.length[:, None] + tree.depth)

    def argmax(self, logits: Tensor) -> Tensor:
        """As ``Batch``."""
        if torch.compiler.is_compiling():
            return super().argmax(logits)
        return self._sampler.argmax(logits)

    def warp(self, logits: Tensor) -> Tensor:
        """As ``Batch``."""
        if torch.compiler.is_compiling():
            return super().warp(logits)
        return self._sampler.warp(logits)

    def begin_chain(self, depth: int, *, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """As ``Batch``."""
        if torch.compiler.is_compiling():
            return super().begin_chain(depth, longest=longest)
        tokens = torch.empty(self.rows, 1 + depth, dtype=torch.int64)
        valid = torch.empty(self.rows, 1 + depth, dtype=torch.bool)
        longest = self.max_length if longest is None else longest
        pointers = (ctypes.c_void_p(tokens.data_ptr()), ctypes.c_void_p(valid.data_ptr()))
        self._begin_chain(ctypes.byref(self._sequences), ctypes.c_int64(depth), ctypes.c_int64(longest), *pointers)
        return tokens, valid

    def _append(self, tree: Tree, outcome: Outcome) -> Outcome:
        """As ``Batch``."""
        if torch.compiler.is_compiling():
            return super()._append(tree, outcome)
        num = torch.empty_like(outcome.num_committed)
        decision, refs = _decision(tree, outcome, num)
        counts = self.processing.counts if self.processing.any_counts else None
        self._sequences.counts = None if counts is None else counts.data_ptr()
        self._run(ctypes.byref(self._sequences), ctypes.byref(decision))
        del refs
        return Outcome(path=outcome.path, num_committed=num, next=outcome.next, picks=outcome.picks)

    def _gather_logprobs(self, outcome: Outcome, scores: Scores) -> StepLogprobs:
        """As ``Batch``."""
        if torch.compiler.is_compiling():
            return super()._gather_logprobs(outcome, scores)
        return self._logprobs.step(outcome, scores.raw_logits, scores.logits)


@final
class CpuStats(Stats):
    """Stats on the CPU, counted by the kernel."""

    def __init__(self, rows: int, max_depth: int, device: torch.device) -> None:
        super().__init__(rows, max_depth, device)
        self._run = load_kernel().paceline_record
        self._run.restype = None
        self._counters = Counters(
            rows=rows,
            max_depth=max_depth,
            steps=self.steps.data_ptr(),
            emitted=self.emitted.data_ptr(),
            drafted=self.drafted.data_ptr(),
            accepted=self.accepted.data_ptr(),
        )

    def record(self, tree: Tree, outcome: Outcome) -> None:
        """As ``Stats``; the torch operations under torch.compile."""
        if torch.compiler.is_compiling():
            return super().record(tree, outcome)
        decision, refs = _decision(tree, outcome, outcome.num_committed)
        self._run(ctypes.byref(self._counters), ctypes.byref(decision))
        del refs


def _decision(tree: Tree, outcome: Outcome, num: Tensor) -> tuple[Decision, list[Tensor]]:
    """The tree and the outcome as the kernel reads them, and the tensors to keep alive meanwhile."""
    fields = (tree.tokens, tree.parents, tree.depth, tree.valid, tree.origin, outcome.path)
    refs = [field if field.stride(-1) == 1 or field.shape[-1] <= 1 else field.contiguous() for field in fields]
    rows = [RowView(field.data_ptr(), field.stride(0)) for field in refs]
    committed, following = outcome.num_committed.contiguous(), outcome.next.contiguous()
    return (
        Decision(
            tree.num_nodes,
            tree.max_depth,
            int(tree.no_draft_reason),
            *rows,
            committed.data_ptr(),
            following.data_ptr(),
            num.data_ptr(),
        ),
        [*refs, committed, following],
    )
