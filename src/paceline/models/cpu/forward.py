"""The forward of a native decoder and fused drafting, each as one call and one operator of the CPU kernel.

B rows, n nodes, V vocabulary, H hidden size.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any, NamedTuple, final
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from paceline.core.columns import Columns
from paceline.core.early_stop import COLUMNS as EARLY_STOP
from paceline.core.sampling import COLUMNS
from paceline.kernels.cpu.instruction_set import current_set, load_kernel
from paceline.kernels.cpu.operators import WORKSPACES, entry, kernel_op, pointers_of, row_major
from paceline.kernels.cpu.sampling import ProcessorTensors, sampling_options
from paceline.kernels.cpu.structs import Buffer, Call, FusedDraft
from paceline.models.base import INPUT_PROJECTIONS, PAIR_INPUTS, InputProjection, LogitsFor, PairInput
from paceline.models.block_input import BLOCK_INPUTS, BlockInput
from paceline.models.cpu.depth_models import compile_depths
from paceline.models.cpu.kv_view import KVView
from paceline.models.cpu.packed_weights import PackedEmbedding, packed_set
from paceline.models.cpu.program import (
    Program,
    compile_block_input,
    compile_input_projection,
    compile_pair_input,
    compile_program,
)
from paceline.models.depth_models import DEPTH_MODELS, DepthModels
from paceline.models.native.decoder import DecoderLM
from paceline.models.sublayers import SkippedSublayers


class Compiled(NamedTuple):
    """A decoder as the kernel reads it, valid while its weights stay where they are."""

    source: int  # where its embeddings are
    dtype: torch.dtype
    program: Program
    cos: Tensor  # [T, E] of positions below T
    sin: Tensor


class CompiledInput(NamedTuple):
    """How the kernel reads what a head is given, valid while its weights stay where they are."""

    handle: int
    place: list[int]  # where the weights are
    read: Any  # a ctypes struct, or an array of them
    weights: Sequence[Tensor]
    arrays: Sequence[object]  # that ``read`` points to


COMPILERS: Mapping[type, Callable[..., tuple[Any, Sequence[Tensor], Sequence[object]]]] = {
    InputProjection: compile_input_projection,
    PairInput: compile_pair_input,
    DepthModels: compile_depths,
    BlockInput: compile_block_input,
}


@final
class KernelModel:
    """``lm`` without ``skipped`` compiled for the kernel, by a handle that stands for its weights in operators.

    It keeps the instruction set that its weights are packed for, or that was current when it was made.

    Raises UnsupportedError for a decoder that the kernel does not support, KernelError if it cannot be built.
    """

    def __init__(self, lm: DecoderLM, skipped: SkippedSublayers | None = None) -> None:
        self.lm, self.handle, self.skipped = lm, next(_HANDLES), skipped
        self.isa = packed_set(lm) or current_set()
        self._compiled = self._compile()
        load_kernel(self.isa)
        self._inputs: dict[type, CompiledInput] = {}
        MODELS[self.handle] = self

    @property
    def embeddings(self) -> Tensor:
        """The embedding matrix, packed or not."""
        embed = self.lm.embed
        return embed.panels if isinstance(embed, PackedEmbedding) else embed.weight

    @property
    def reads_pairs(self) -> bool:
        """Whether its first layer reads an embedding beside a feature (models/native/pair_block)."""
        return self._compiled.program.model.input == Buffer.PAIR

    def at(self, capacity: int) -> Compiled:
        """For caches of ``capacity``: compiled again if weights were moved, with rotary tables as long."""
        now = self._compiled
        if self.embeddings.data_ptr() != now.source:
            now = self._compile()
            self._inputs.clear()
        length = min(capacity, self.lm.max_positions)
        if self.lm.rotary is not None and now.cos.shape[0] < length:
            cos, sin = self.lm.rotary(torch.arange(length)[None], now.dtype)  # rounded as in the eager decoder
            wide = torch.promote_types(now.dtype, torch.float32)
            now = now._replace(cos=cos[0, :, 0].to(wide).contiguous(), sin=sin[0, :, 0].to(wide).contiguous())
        self._compiled = now
        return now

    def compile_input(self, given: InputProjection | PairInput | DepthModels | BlockInput) -> Any:
        """How the kernel reads what it is ``given``, compiled again if weights of it were moved."""
        known = self._inputs.get(type(given))
        if (
            known is None
            or known.handle != given.handle
            or [weight.data_ptr() for weight in known.weights] != known.place
        ):
            read, weights, arrays = COMPILERS[type(given)](self.lm, given)
            place = [weight.data_ptr() for weight in weights]
            known = self._inputs[type(given)] = CompiledInput(given.handle, place, read, weights, arrays)
        return known.read

    def _compile(self) -> Compiled:
        program, embeddings = compile_program(self.lm, self.skipped), self.embeddings
        return Compiled(embeddings.data_ptr(), embeddings.dtype, program, torch.empty(0), torch.empty(0))


_HANDLES = count()
MODELS: WeakValueDictionary[int, KernelModel] = WeakValueDictionary()  # by their handles


@kernel_op(
    lambda *_: None,
    mutates=("cache_keys", "cache_values", "logits", "hidden"),
)
def forward(
    model: int,
    workspace: int,
    cache: KVView,
    layers: Sequence[int],
    tokens: Tensor,
    depth: Tensor,
    valid: Tensor,
    ancestors: Tensor,
    start: int,
    chain: bool,
    logits_for: int,
    logits: Tensor | None,
    taps: Sequence[int],
    hidden: Sequence[Tensor],
    resumed: Tensor | None,
    ready: Tensor | None,
    resumed_layer: int,
    last_states: int,
) -> None:
    """Score the nodes ``start`` on of a tree (models/base.LM); fills ``logits`` and ``hidden``, one tensor per tap.

    ``tokens``, ``depth``, ``valid`` and ``ancestors`` are of these nodes. ``workspace`` is the address of a Workspace.
    """
    held, memory = MODELS[model], WORKSPACES[workspace]
    compiled = held.at(cache.keys.shape[2])
    tokens, depth, valid, ancestors = row_major(tokens), row_major(depth), row_major(valid), row_major(ancestors)
    rows, nodes = tokens.shape
    call = call_for(compiled, cache, layers, rows=rows, nodes=nodes, logits_for=logits_for)
    call.start, call.chain, call.last_states = start, chain, last_states
    call.tokens, call.tokens_step = tokens.data_ptr(), tokens.stride(0)
    call.depth, call.depth_step = depth.data_ptr(), depth.stride(0)
    call.valid, call.valid_step = valid.data_ptr(), valid.stride(0)
    call.ancestors = ancestors.data_ptr()
    call.ancestors_row_step, call.ancestors_step = ancestors.stride()[:2]
    if taps:
        call.taps, call.num_taps = _integers(tuple(taps)), len(taps)
        call.hidden = (ctypes.c_void_p * len(taps))(*(tap.data_ptr() for tap in hidden))
    call.logits = None if logits is None else logits.data_ptr()
    if resumed is not None and ready is not None:
        resumed, ready = row_major(resumed), row_major(ready)
        call.ready, call.ready_step = ready.data_ptr(), ready.stride(0)
        call.resumed, call.resumed_layer = resumed.data_ptr(), resumed_layer
        call.resumed_row_step, call.resumed_step = resumed.stride()[:2]
    entry(held.isa, "forward", compiled.dtype)(
        ctypes.c_void_p(memory.address), ctypes.byref(compiled.program.model), ctypes.byref(call)
    )


@kernel_op(
    lambda *_: None,
    mutates=(
        *("cache_keys", "cache_values", "states", "tokens", "valid"),
        *("early_stop_notes", "shared_keys", "shared_values", "hidden"),
    ),
    columns={"sampling": COLUMNS, "early_stop": EARLY_STOP},
)
def draft_fused(
    model: int,
    workspace: int,
    cache: KVView,
    layers: Sequence[int],
    sampling: Columns,
    processors: ProcessorTensors | None,
    vocab: int,
    sequences: Tensor,
    length: Tensor,
    tokens: Tensor,
    valid: Tensor,
    greedy: bool,
    early_stop: Columns | None,
    count: Tensor,
    max_count: int,
    states: Tensor | None,
    input_projection: int | None,
    pairs: int | None,
    depth_models: int | None,
    block: int | None,
    target_ids: Tensor | None,
    shared_model: int | None,
    shared: KVView | None,
    shared_layers: Sequence[int],
    hidden: Tensor | None,
    added: Tensor | None,
) -> None:
    """Draft a chain for every row (models/base.FusedDrafting); ids below ``vocab`` are drafted.

    ``early_stop`` (None: it never does) ends chains and takes their notes (core/early_stop); what is not drafted is
    not ``valid`` any more. ``sequences`` [B, T] of ``length`` [B] are the batch's; ``target_ids`` (None: the same) are
    those of the logits; ``input_projection``, ``pairs``, ``depth_models``, ``block`` and the models are handles.
    """
    held, memory, rows = MODELS[model], WORKSPACES[workspace], len(tokens)
    compiled = held.at(cache.keys.shape[2])
    own = layers if depth_models is None else ()  # those have none
    call = call_for(compiled, cache, own, rows=rows, nodes=1, logits_for=LogitsFor.ALL.value)
    call.chain, program = True, compiled.program.model
    draft = FusedDraft(
        depth=tokens.shape[1] - 1,
        vocab=vocab if target_ids is not None else min(held.lm.vocab_size, vocab),
        greedy=greedy,
        max_count=max_count,
        count=count.data_ptr(),
        sequence=sequences.data_ptr(),
        sequence_step=sequences.stride(0),
        length=length.data_ptr(),
        valid=valid.data_ptr(),
        tokens=tokens.data_ptr(),
    )
    if early_stop is not None:
        draft.least, draft.acceptance, draft.notes = (column.data_ptr() for column in early_stop.tensors)
    if states is not None:
        draft.states, draft.states_row_step, draft.states_step = states.data_ptr(), *states.stride()[:2]
    if input_projection is not None:
        draft.input_projection = held.compile_input(INPUT_PROJECTIONS[input_projection])
    if pairs is not None:
        call.pair = ctypes.pointer(held.compile_input(PAIR_INPUTS[pairs]))
    if depth_models is not None:
        draft.depth_models = held.compile_input(DEPTH_MODELS[depth_models])
        program, call.pair = draft.depth_models[0].model, ctypes.pointer(draft.depth_models[0].pair)
    if block is not None:
        draft.block = ctypes.pointer(held.compile_input(BLOCK_INPUTS[block]))
    if target_ids is not None:
        draft.target_ids = target_ids.data_ptr()
    if shared is not None and shared_model is not None and hidden is not None:
        first = MODELS[shared_model].at(shared.keys.shape[2])
        first_call = call_for(first, shared, shared_layers, rows=rows, nodes=1, logits_for=LogitsFor.NONE.value)
        first_call.chain = True
        draft.shared_layers, draft.shared_layers_call = map(ctypes.pointer, (first.program.model, first_call))
        draft.hidden = hidden.data_ptr()
        if added is not None:
            added = row_major(added)
            draft.added, draft.added_row_step, draft.added_step = added.data_ptr(), *added.stride()[:2]
    options = pointers_of(sampling, sampling_options)
    structs = (program, call, options)
    entry(held.isa, "draft_fused", compiled.dtype)(
        ctypes.c_void_p(memory.address),
        *map(ctypes.byref, structs),
        None if processors is None else ctypes.byref(processors.struct(vocab)),
        ctypes.byref(draft),
    )


def call_for(
    compiled: Compiled, cache: KVView, layers: Sequence[int], *, rows: int, nodes: int, logits_for: int
) -> Call:
    """A call with the cache and rotary tables set but not the tree."""
    keys, values, length, index, source, source_values, source_length = cache
    call = Call(
        rows=rows,
        nodes=nodes,
        threads=torch.get_num_threads(),
        logits_for=logits_for,
        length=length.data_ptr(),
        row_index=None if index is None else index.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        layer_step=keys.stride(0),
        row_step=keys.stride(1),
        slot_step=keys.stride(2),
        capacity=keys.shape[2],
        cos=compiled.cos.data_ptr(),
        sin=compiled.sin.data_ptr(),
        table=compiled.cos.shape[0],
        rotary_dim=compiled.cos.shape[-1],
        layers=_integers(tuple(layers)),
        num_layers=len(layers),
    )
    if source is not None and source_values is not None and source_length is not None:
        call.source_keys, call.source_values = source.data_ptr(), source_values.data_ptr()
        call.source_row_step, call.source_layer_step, call.source_slot_step = source.stride()[:3]
        call.source_length = source_length.data_ptr()
    return call


@cache
def _integers(values: tuple[int, ...]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)
