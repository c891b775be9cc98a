"""A native decoder whose forward is one call of the CPU kernel: an LM (models/base) equivalent to the eager one.

B rows, n nodes, V vocabulary, H hidden size. Logits and taps of invalid nodes are zero.
"""

import ctypes
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.cache import SlotCache, View
from paceline.core.tree import Resume, Tree
from paceline.kernels.cpu import structs as structs
from paceline.kernels.cpu.build import load_kernel
from paceline.kernels.cpu.processing import logits_processors_of
from paceline.kernels.cpu.sampling import is_philox, sampling_options_of
from paceline.models.base import FusedDrafting, InputProjection, LogitsFor, Output, PendingInputs, SharedLayers
from paceline.models.cpu.program import compile_input_projection, compile_program
from paceline.models.loading import dtype_name
from paceline.models.memory import lazy_zeros
from paceline.models.native.decoder import DecoderLM
from paceline.models.wrapped import WrappedLM


@final
class CpuDecoder(WrappedLM[DecoderLM], FusedDrafting):
    """``lm`` run by the CPU kernel on the same weights.

    It is batch-invariant: a token has bitwise the same logits whether it is scored alone, in a draft, in a batch or in
    a prompt. Weights may be changed in place or moved as a whole.

    Raises UnsupportedError for a decoder that the kernel does not support, KernelError if it cannot be built.
    """

    def __init__(self, lm: DecoderLM) -> None:
        super().__init__(lm)
        self._prepare()

    @property
    def dtype(self) -> torch.dtype:
        return self.lm.dtype

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """As the eager decoder's, but slots take memory only when written: the kernel reads no others.

        Raises ValueError for a capacity that exceeds the model's sliding window.
        """
        return self.lm.new_cache(rows, capacity, zeros=lazy_zeros)

    def __call__(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        resume: Resume | None = None,
    ) -> Output:
        """Score nodes ``start`` on of ``tree`` (see models/base); under torch.compile by the eager decoder."""
        if torch.compiler.is_compiling():
            return self.lm(tree, cache, start=start, taps=taps, logits_for=logits_for, resume=resume)
        self._refresh(cache)
        tokens, depth, valid = (
            _row_major(tree.tokens[:, start:]),
            _row_major(tree.depth[:, start:]),
            _row_major(tree.valid[:, start:]),
        )
        ancestors = _row_major(tree.ancestors[:, start:])
        rows, nodes = tokens.shape
        logits = self._empty_logits(rows, nodes, logits_for)
        hidden = {tap: torch.empty(rows, nodes, self.lm.config.hidden_size, dtype=self.dtype) for tap in taps}
        call, refs = self._call(cache, rows=rows, nodes=nodes, logits_for=logits_for)
        call.start, call.chain = start, tree.chain
        call.tokens, call.tokens_step = tokens.data_ptr(), tokens.stride(0)
        call.depth, call.depth_step = depth.data_ptr(), depth.stride(0)
        call.valid, call.valid_step = valid.data_ptr(), valid.stride(0)
        call.ancestors = ancestors.data_ptr()
        call.ancestors_row_step, call.ancestors_step = ancestors.stride(0), ancestors.stride(1)
        call.taps, call.num_taps = _integers(taps), len(taps)
        call.hidden = (ctypes.c_void_p * len(taps))(*(hidden[tap].data_ptr() for tap in taps))
        call.logits = None if logits is None else logits.data_ptr()
        if resume is not None:
            assert min(taps, default=resume.layer) >= resume.layer, "taps must not be below the resumed layer"
            refs += self._set_resume(call, resume)
        self._run(ctypes.byref(self._program.model), ctypes.byref(call))
        del refs
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
        if torch.compiler.is_compiling() or not is_philox(batch.noise):
            return False
        if shared_layers is not None and not (
            isinstance(shared_layers.lm, CpuDecoder) and shared_layers.lm.dtype == self.dtype
        ):
            return False
        self._refresh(cache)
        call, refs = self._call(cache, rows=len(tokens), nodes=1, logits_for=LogitsFor.ALL)
        call.chain = True
        draft = structs.FusedDraft(
            depth=tokens.shape[1] - 1,
            vocab=min(self.vocab_size, batch.processing.vocab_size),
            greedy=greedy,
            max_count=pending.max_count,
            count=pending.count.data_ptr(),
            sequence=batch.tokens.data_ptr(),
            sequence_step=batch.tokens.stride(0),
            length=batch.length.data_ptr(),
            valid=valid.data_ptr(),
            tokens=tokens.data_ptr(),
        )
        if pending.states is not None:
            states = pending.states
            assert states.dtype == self.dtype and states.stride(-1) == 1
            assert states.shape[1] >= pending.max_count + (shared_layers is not None)
            draft.states, draft.states_row_step, draft.states_step = states.data_ptr(), *states.stride()[:2]
            if pending.input_projection is None:
                assert states.shape[-1] == self.lm.config.hidden_size
            else:
                assert states.shape[-1] == pending.input_projection.product.in_features
                draft.input_projection = self._compile_projection(pending.input_projection)
        if shared_layers is not None:
            assert (
                isinstance(shared_layers.lm, CpuDecoder)
                and pending.states is not None
                and pending.input_projection is None
            )
            refs += shared_layers.lm._run_shared_layers(draft, shared_layers, len(tokens))
        options = sampling_options_of(batch.sampling)
        processors = (
            logits_processors_of(batch.processing, batch.tokens, batch.length) if batch.processing.any else None
        )
        self._draft(
            *map(ctypes.byref, (self._program.model, call, options)),
            None if processors is None else ctypes.byref(processors),
            ctypes.byref(draft),
        )
        del refs
        return True

    def _call(self, cache: View, *, rows: int, nodes: int, logits_for: LogitsFor) -> tuple[structs.Call, list[Tensor]]:
        """A call with the cache and rotary tables set but not the tree, and the tensors that it points to."""
        length, index, storage = cache.length, cache.rows, cache.storage
        call = structs.Call(
            rows=rows,
            nodes=nodes,
            threads=torch.get_num_threads(),
            logits_for=logits_for.value,
            length=length.data_ptr(),
            row_index=None if index is None else index.data_ptr(),
            keys=storage.keys.data_ptr(),
            values=storage.values.data_ptr(),
            layer_step=storage.keys.stride(0),
            row_step=storage.keys.stride(1),
            slot_step=storage.keys.stride(2),
            capacity=cache.capacity,
            cos=self._cos.data_ptr(),
            sin=self._sin.data_ptr(),
            table=self._cos.shape[0],
            rotary_dim=self._cos.shape[-1],
            layers=_integers(cache.layers),
            num_layers=len(cache.layers),
        )
        return call, [length] if index is None else [length, index]

    def _set_resume(self, call: structs.Call, resume: Resume) -> list[Tensor]:
        """Set which nodes start after the first layers, and their hidden states; the tensors to keep alive."""
        hidden, ready = _row_major(resume.hidden), _row_major(resume.ready)
        assert hidden.dtype == self.dtype and hidden.shape[-1] == self.lm.config.hidden_size
        call.ready, call.ready_step = ready.data_ptr(), ready.stride(0)
        call.resumed, call.resumed_layer = hidden.data_ptr(), resume.layer
        call.resumed_row_step, call.resumed_step = hidden.stride(0), hidden.stride(1)
        return [hidden, ready]

    def _compile_projection(self, projection: InputProjection) -> ctypes.Array[structs.Operation]:
        """The operations of ``projection``, compiled again if its weights were moved."""
        place = projection.product.weight.data_ptr()
        if self._input_projection is None or self._input_projection[0] != place:
            self._input_projection = (place, *compile_input_projection(self.lm, projection))
        return self._input_projection[1]

    def _run_shared_layers(self, draft: structs.FusedDraft, shared: SharedLayers, rows: int) -> list[Tensor]:
        """Have ``shared``, layers of this model, read each token first; the tensors that ``draft`` points to then."""
        self._refresh(shared.cache)
        call, refs = self._call(shared.cache, rows=rows, nodes=1, logits_for=LogitsFor.NONE)
        call.chain = True
        draft.shared_layers, draft.shared_layers_call = ctypes.pointer(self._program.model), ctypes.pointer(call)
        assert shared.hidden.is_contiguous() and shared.hidden.dtype == self.dtype
        assert shared.hidden.shape[-1] == self.lm.config.hidden_size
        draft.hidden = shared.hidden.data_ptr()
        if shared.added is not None:
            added = _row_major(shared.added)
            assert added.dtype == self.dtype
            draft.added, draft.added_row_step, draft.added_step = added.data_ptr(), added.stride(0), added.stride(1)
            refs.append(added)
        return refs

    def _refresh(self, cache: View) -> None:
        """Compile again if weights were moved; extend the rotary tables to the capacity of ``cache``."""
        if next(self.lm.embed.parameters()).data_ptr() != self._source:
            self._prepare()
        self._extend_rotary(min(cache.capacity, self.max_positions))

    def _prepare(self) -> None:
        self._program = compile_program(self.lm)
        self._source = next(self.lm.embed.parameters()).data_ptr()
        self._run = getattr(load_kernel(), f"paceline_forward_{dtype_name(self.lm.dtype)}")
        self._run.restype = None
        self._draft = getattr(load_kernel(), f"paceline_draft_fused_{dtype_name(self.lm.dtype)}")
        self._draft.restype = None
        self._cos = self._sin = torch.empty(0)
        self._input_projection: tuple[int, ctypes.Array[structs.Operation], tuple[Tensor, ...]] | None = None

    def _empty_logits(self, rows: int, nodes: int, logits_for: LogitsFor) -> Tensor | None:
        if logits_for is LogitsFor.NONE:
            return None
        return torch.empty(rows, nodes if logits_for is LogitsFor.ALL else 1, self.vocab_size, dtype=self.dtype)

    def _extend_rotary(self, length: int) -> None:
        """Rotary tables of the positions below ``length``, rounded as in the eager decoder."""
        if self.lm.rotary is None or self._cos.shape[0] >= length:
            return
        cos, sin = self.lm.rotary(torch.arange(length)[None], self.dtype)
        wide = torch.promote_types(self.dtype, torch.float32)
        self._cos, self._sin = cos[0, :, 0].to(wide).contiguous(), sin[0, :, 0].to(wide).contiguous()


def _row_major(tensor: Tensor) -> Tensor:
    """``tensor`` with a last axis of stride 1."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)
