"""How a step ends, as one call of the kernel for the texts and one for the counters; what is written is the same.

So are the chain that it begins with and the tokens that are chosen on the way. R rows, N nodes, D depth of the tree,
V vocabulary.
"""

import ctypes
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import REPORT_HEAD, Batch
from paceline.core.noise import Noise
from paceline.core.stats import Stats
from paceline.core.tree import Outcome, Tree
from paceline.kernels.cpu.build import load_kernel
from paceline.kernels.cpu.logprobs import Lookup
from paceline.kernels.cpu.processing import Processor
from paceline.kernels.cpu.sampling import Chooser, known
from paceline.kernels.cpu.structs import Counters, Decision, Rows, Texts


@final
class CpuBatch(Batch):
    """A batch on the CPU whose tokens are chosen and whose texts grow by the kernel.

    Traced by a compiler it does what the plain one does; so it does, in choosing, with noise that the kernel does not
    know. Raises KernelError where it cannot be built.
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
        self._texts = Texts(
            rows=rows,
            width=self.tokens.shape[1],
            stops=self.stop.shape[1],
            max_depth=max_depth,
            head=REPORT_HEAD,
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
        self._chooser = Chooser(sampling=self.sampling)
        self._processor = Processor(state=self.processing, tokens=self.tokens, length=self.length)
        self._lookup = Lookup(self)
        self._keyed = known(noise)

    def _apply(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """As the plain one."""
        if torch.compiler.is_compiling() or not self._processor.fits(logits):
            return super()._apply(logits, drafted)
        return self._processor.process(logits, drafted)

    def _apply_at(self, logits: Tensor, tree: Tree) -> Tensor:
        """As the plain one."""
        if torch.compiler.is_compiling() or not self._processor.fits(logits):
            return super()._apply_at(logits, tree)
        return self._processor.process_tree(logits, tree)

    def pick(self, logits: Tensor, position: Tensor) -> Tensor:
        """As the plain one."""
        if torch.compiler.is_compiling() or not self._keyed:
            return super().pick(logits, position)
        return self._chooser.pick(logits, position)

    def picks(self, tree: Tree, logits: Tensor) -> Tensor:
        """As the plain one."""
        if torch.compiler.is_compiling() or not self._keyed:
            return super().picks(tree, logits)
        return self.pick(logits, self.length[:, None] + tree.depth)

    def argmax(self, logits: Tensor) -> Tensor:
        """As the plain one."""
        if torch.compiler.is_compiling():
            return super().argmax(logits)
        return self._chooser.argmax(logits)

    def scores(self, logits: Tensor) -> Tensor:
        """As the plain one."""
        if torch.compiler.is_compiling():
            return super().scores(logits)
        return self._chooser.warp(logits)

    def begin_chain(self, depth: int, *, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """As the plain one."""
        if torch.compiler.is_compiling():
            return super().begin_chain(depth, longest=longest)
        tokens = torch.empty(self.rows, 1 + depth, dtype=torch.int64)
        valid = torch.empty(self.rows, 1 + depth, dtype=torch.bool)
        longest = self.max_length if longest is None else longest
        where = (ctypes.c_void_p(tokens.data_ptr()), ctypes.c_void_p(valid.data_ptr()))
        self._begin_chain(ctypes.byref(self._texts), ctypes.c_int64(depth), ctypes.c_int64(longest), *where)
        return tokens, valid

    def extend(self, tree: Tree, outcome: Outcome) -> Outcome:
        """As the plain one."""
        if torch.compiler.is_compiling():
            return super().extend(tree, outcome)
        num = torch.empty_like(outcome.num_committed)
        decision, held = _decide(tree, outcome, num)
        counts = self.processing.counts if self.processing.any_counts else None
        self._texts.counts = None if counts is None else counts.data_ptr()
        self._run(ctypes.byref(self._texts), ctypes.byref(decision))
        del held
        return Outcome(path=outcome.path, num_committed=num, next=outcome.next, picks=outcome.picks)

    def record_logprobs(self, outcome: Outcome, logits: Tensor, processed: Tensor) -> None:
        """As the plain one."""
        if torch.compiler.is_compiling() or not self.wants_logprobs:
            return super().record_logprobs(outcome, logits, processed)
        self.step_logprobs = self._lookup.step(outcome, logits, processed)


@final
class CpuStats(Stats):
    """Counters on the CPU that the kernel adds up."""

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
        """As the plain one; traced by a compiler it is the plain one."""
        if torch.compiler.is_compiling():
            return super().record(tree, outcome)
        decision, held = _decide(tree, outcome, outcome.num_committed)
        self._run(ctypes.byref(self._counters), ctypes.byref(decision))
        del held


def _decide(tree: Tree, outcome: Outcome, num: Tensor) -> tuple[Decision, list[Tensor]]:
    """What was drafted and decided, and the tensors that it points to."""
    fields = (tree.tokens, tree.parents, tree.depth, tree.valid, tree.origin, outcome.path)
    held = [field if field.stride(-1) == 1 or field.shape[-1] <= 1 else field.contiguous() for field in fields]
    rows = [Rows(field.data_ptr(), field.stride(0)) for field in held]
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
        [*held, committed, following],
    )
