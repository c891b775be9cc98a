"""A native decoder whose forward is one call of the CPU kernel: an LM (models/base) equivalent to the eager one.

B rows, n nodes, V vocabulary, H hidden size. Logits and taps of invalid nodes are zero.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.cache import SlotCache, View
from paceline.core.tree import Resume, Tree
from paceline.kernels.cpu.operators import Workspace
from paceline.kernels.cpu.ops import is_philox
from paceline.kernels.cpu.sampling import ProcessorTensors
from paceline.models.base import BlockReading, FusedDrafting, LogitsFor, Output, PendingInputs, SharedLayers
from paceline.models.cpu.block import read_block
from paceline.models.cpu.forward import KernelModel, draft_fused, forward
from paceline.models.cpu.kv_view import KVView
from paceline.models.memory import lazy_zeros
from paceline.models.native.decoder import DecoderLM
from paceline.models.sublayers import SkippedSublayers
from paceline.models.wrapped import WrappedLM


@final
class CpuDecoder(WrappedLM[DecoderLM], FusedDrafting, BlockReading):
    """``lm`` run by the CPU kernel on the same weights, without ``skipped`` (None: nothing is).

    It is batch-invariant: a token has bitwise the same logits whether it is scored alone, in a draft, in a batch or in
    a prompt. Weights may be changed in place or moved as a whole.

    Raises UnsupportedError for a decoder that the kernel does not support, KernelError if it cannot be built, and
    ValueError for layers that there are not.
    """

    def __init__(self, lm: DecoderLM, skipped: SkippedSublayers | None = None) -> None:
        super().__init__(lm)
        if skipped is not None:
            skipped.check(lm.num_layers)
        self._kernel_model = KernelModel(lm, skipped)

    def without(self, skipped: SkippedSublayers) -> "CpuDecoder":
        """See models/sublayers.LayerSkipping."""
        return CpuDecoder(self.lm, skipped)

    @property
    def isa(self) -> str:
        """The instruction set of the kernel that runs it."""
        return self._kernel_model.isa

    @property
    def dtype(self) -> torch.dtype:
        return self.lm.dtype

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """As the eager decoder's, but slots take memory only when written: the kernel reads no others.

        Raises ValueError for a capacity that exceeds the model's sliding window.
        """
        cache = self.lm.new_cache(rows, capacity, zeros=lazy_zeros)
        cache.workspace = Workspace(self.isa)
        return cache

    def __call__(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        resume: Resume | None = None,
        last_states: int | None = None,
    ) -> Output:
        """Score nodes ``start`` on of ``tree`` (see models/base)."""
        tokens = tree.tokens[:, start:]
        rows, nodes = tokens.shape
        dtype, size = self._kernel_model.embeddings.dtype, self.lm.config.hidden_size
        logits = None
        if logits_for is not LogitsFor.NONE:
            num_logits = nodes if logits_for is LogitsFor.ALL else 1
            logits = torch.empty(rows, num_logits, self.vocab_size, dtype=dtype)
        hidden = {tap: torch.empty(rows, nodes, size, dtype=dtype) for tap in taps}
        resumed = ready = None
        if resume is not None:
            resumed, ready = resume.hidden, resume.ready
            assert min(taps, default=resume.layer) >= resume.layer, "taps must not be below the resumed layer"
            width = 2 * size if self._kernel_model.reads_pairs and resume.layer == 0 else size
            assert resumed.dtype == dtype and resumed.shape[-1] == width
        forward(
            self._kernel_model.handle,
            _workspace_of(cache, self.isa),
            KVView.of(cache),
            cache.layers,
            tokens,
            tree.depth[:, start:],
            tree.valid[:, start:],
            tree.ancestors[:, start:],
            start,
            tree.chain,
            logits_for.value,
            logits,
            tuple(hidden),
            tuple(hidden.values()),
            resumed,
            ready,
            0 if resume is None else resume.layer,
            last_states or 0,
        )
        return Output(logits, hidden)

    def draft_fused(
        self,
        batch: Batch,
        cache: View,
        pending: PendingInputs,
        tokens: Tensor,
        valid: Tensor,
        *,
        greedy: bool,
        shared_layers: SharedLayers | None = None,
    ) -> bool:
        """See models/base; one kernel call, logits processors included. Needs Philox noise."""
        shared = None if shared_layers is None else shared_layers.lm
        if not is_philox(batch.noise):
            return False
        if shared is not None and not (
            isinstance(shared, CpuDecoder) and shared.dtype == self.dtype and shared.isa == self.isa
        ):
            return False
        self._check_pending(pending, shared_layers)
        processing = batch.processing
        draft_fused(
            self._kernel_model.handle,
            _workspace_of(cache, self.isa),
            KVView.of(cache),
            cache.layers,
            batch.sampling.columns,
            ProcessorTensors.of(processing, batch.tokens, batch.length) if processing.any else None,
            processing.vocab_size,
            batch.tokens,
            batch.length,
            tokens,
            valid,
            greedy,
            None if batch.early_stop.rule is None else batch.early_stop.columns,
            pending.count,
            pending.max_count,
            pending.states,
            None if pending.input_projection is None else pending.input_projection.handle,
            None if pending.pairs is None else pending.pairs.handle,
            None if pending.depth_models is None else pending.depth_models.handle,
            None if pending.block is None else pending.block.handle,
            pending.draft_ids,
            shared._kernel_model.handle if isinstance(shared, CpuDecoder) else None,
            None if shared_layers is None else KVView.of(shared_layers.cache),
            () if shared_layers is None else shared_layers.cache.layers,
            None if shared_layers is None else shared_layers.hidden,
            None if shared_layers is None else shared_layers.added,
        )
        return True

    def read_block(self, cache: View, pending: PendingInputs, tokens: Tensor, valid: Tensor) -> Output:
        """See models/base.BlockReading; one kernel call."""
        self._check_pending(pending, None)
        block, states, rows = pending.block, pending.states, len(tokens)
        assert block is not None and states is not None
        dtype = self._kernel_model.embeddings.dtype
        logits = torch.zeros(rows, block.num_slots, self.vocab_size, dtype=dtype)
        streams = torch.empty(rows, block.num_slots, self.lm.config.hidden_size, dtype=dtype)
        read_block(
            self._kernel_model.handle,
            _workspace_of(cache, self.isa),
            KVView.of(cache),
            cache.layers,
            block.handle,
            pending.count,
            states,
            tokens,
            valid,
            logits,
            streams,
        )
        return Output(logits, {self.num_layers: streams})

    def _check_pending(self, pending: PendingInputs, shared: SharedLayers | None) -> None:
        """Assert that the inputs of fused drafting are laid out as the kernel reads them."""
        states, projection = pending.states, pending.input_projection
        dtype = self._kernel_model.embeddings.dtype
        assert pending.depth_models or pending.draft_ids is None or len(pending.draft_ids) == self.vocab_size
        if states is not None:
            width = self.lm.config.hidden_size if projection is None else projection.product.in_features
            if pending.depth_models is not None:
                width = pending.depth_models.depths[0].state_size
            if pending.block is not None:
                width = pending.block.product.in_features
            assert states.dtype == dtype and states.stride(-1) == 1 and states.shape[-1] == width
            assert states.shape[1] >= pending.max_count + (shared is not None)
        if pending.pairs is not None:
            assert states is not None and projection is None and shared is None
        if pending.depth_models is not None:
            assert states is not None and pending.max_count == 1 and pending.pairs is projection is shared is None
        if pending.block is not None:
            assert states is not None and pending.pairs is pending.depth_models is projection is shared is None
        if shared is not None:
            assert states is not None and projection is None
            assert shared.hidden.is_contiguous() and shared.hidden.dtype == dtype
            assert shared.hidden.shape[-1] == self.lm.config.hidden_size
            assert shared.added is None or shared.added.dtype == dtype


def _workspace_of(cache: View, isa: str) -> int:
    """The address of the workspace of ``cache``, made here for a storage of another decoder."""
    workspace = cache.storage.workspace
    if not isinstance(workspace, Workspace) or workspace.isa != isa:
        workspace = cache.storage.workspace = Workspace(isa)
    return workspace.address
