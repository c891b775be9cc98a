"""The forward of a block of slots, after the target's states that the head has yet to read, as one operator.

B rows, b slots, D depth, S taps, H hidden size, V vocabulary of the logits.
"""

import ctypes
from collections.abc import Sequence

from torch import Tensor

from paceline.kernels.cpu.operators import WORKSPACES, entry, kernel_op
from paceline.kernels.cpu.structs import FusedDraft
from paceline.models.base import LogitsFor
from paceline.models.block_input import BLOCK_INPUTS
from paceline.models.cpu.forward import MODELS, call_for
from paceline.models.cpu.kv_view import KVView


@kernel_op(lambda *_: None, mutates=("cache_keys", "cache_values", "logits", "streams"))
def read_block(
    model: int,
    workspace: int,
    cache: KVView,
    layers: Sequence[int],
    block: int,
    count: Tensor,
    states: Tensor,
    tokens: Tensor,
    valid: Tensor,
    logits: Tensor,
    streams: Tensor,
) -> None:
    """Read the first ``count`` [B] of ``states`` [B, n, S * H] and a block whose root is the first of ``tokens``.

    ``tokens`` and ``valid`` [B, 1 + D] are contiguous. Fills ``streams`` [B, b, H], the residual stream after the last
    layer, and of ``logits`` [B, b, V] the rows of the slots that draft what is valid. ``model`` and ``block`` are
    handles, ``workspace`` the address of a Workspace.
    """
    held, memory = MODELS[model], WORKSPACES[workspace]
    compiled = held.at(cache.keys.shape[2])
    call = call_for(compiled, cache, layers, rows=len(tokens), nodes=1, logits_for=LogitsFor.ALL.value)
    last, outputs = (ctypes.c_int64 * 1)(len(layers)), (ctypes.c_void_p * 1)(streams.data_ptr())
    call.logits, call.taps, call.hidden, call.num_taps = logits.data_ptr(), last, outputs, 1
    draft = FusedDraft(
        depth=tokens.shape[1] - 1,
        count=count.data_ptr(),
        states=states.data_ptr(),
        states_row_step=states.stride(0),
        states_step=states.stride(1),
        valid=valid.data_ptr(),
        tokens=tokens.data_ptr(),
        block=ctypes.pointer(held.compile_input(BLOCK_INPUTS[block])),
    )
    entry(held.isa, "read_block", compiled.dtype)(
        ctypes.c_void_p(memory.address), ctypes.byref(compiled.program.model), ctypes.byref(call), ctypes.byref(draft)
    )
