"""Attention over trees that reads only what is attended, on devices that FlexAttention has kernels for.

And the choice between it and the dense one. Knows nothing of layers' weights or of tokens. Letters as in attention.py;
K blocks of ``BLOCK`` slots in a row's capacity, Q blocks of as many queries.
"""

import logging
from collections.abc import Callable
from functools import cache as remember
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from paceline.core.cache import View
from paceline.core.tree import Tree
from paceline.models.native.attention import CacheAttention, ScoreBias, TreeAttention

BLOCK = 128  # slots that are read or left out together, and queries of one piece of work: what the kernels are made for
DEVICES = frozenset({"cuda"})  # kinds of devices where it is tried
MOST_SHAPES = 512  # compiled in one process
ROUNDINGS, LOOSE = 4, 1e-3  # of the largest value, by how much it may differ from the dense one

logger = logging.getLogger("paceline")


class AttentionFactory(Protocol):
    """What makes one forward's attention over the slots of a cache."""

    def __call__(
        self, tree: Tree, cache: View, start: int, *, max_positions: int, group: int, bias: ScoreBias | None = None
    ) -> CacheAttention:
        """For the nodes ``start`` on of ``tree``, with ``group`` query heads per key-value head, and ``bias`` added to
        the scores (None: nothing).
        """
        ...


class VisibleBlocks(NamedTuple):
    """What decides who sees what, as tensors of the device."""

    length: Tensor  # [B] committed slots
    ancestors: Tensor  # [B, n, N] bool
    num_mixed: Tensor  # [B, 1, Q] int32, how many blocks hold seen slots and others
    mixed: Tensor  # [B, 1, Q, K] int32, those blocks first
    num_whole: Tensor  # [B, 1, Q] int32, how many blocks every query sees whole
    whole: Tensor  # [B, 1, Q, K] int32, those blocks first


class FlexAttention(CacheAttention):
    """Blocks of committed slots are read without a mask, those with nodes under one, the others not at all.

    Nothing is compiled where ``compiled`` is False: slow, and the same result.
    """

    def __init__(self, tree: Tree, cache: View, start: int, *, max_positions: int, compiled: bool) -> None:
        super().__init__(tree, cache, start, max_positions=max_positions)
        self.seen = _seen(tree, cache, start)
        self.attend = _compiled() if compiled else _attend

    def attend_slots(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        # One layout of queries whatever made them, so that one compiled function serves all layers.
        heads_first = query.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        return self.attend(heads_first, keys.transpose(1, 2), values.transpose(1, 2), *self.seen).transpose(1, 2)


def select_attention(
    tree: Tree, cache: View, start: int, *, max_positions: int, group: int, bias: ScoreBias | None = None
) -> CacheAttention:
    """Flex where the device has kernels for it, the call is a step over all rows without a bias, and a trial went well;
    else dense.

    Prompts are read by views of some rows, in pieces of many sizes, each of which would have to be compiled. A cache
    of no layers (a head's logits alone) has nothing to try it on.
    """
    dense = TreeAttention
    step = cache.rows is None and cache.storage.keys.shape[0] > 0
    if bias is not None or cache.length.device.type not in DEVICES or not step or torch.compiler.is_compiling():
        return dense(tree, cache, start, max_positions=max_positions, group=group, bias=bias)
    flex = FlexAttention(tree, cache, start, max_positions=max_positions, compiled=True)
    shape = _shape(flex, group)
    if shape not in _SERVES:
        _SERVES[shape] = _try(flex, dense(tree, cache, start, max_positions=max_positions, group=group), group)
    return flex if _SERVES[shape] else dense(tree, cache, start, max_positions=max_positions, group=group)


_SERVES: dict[tuple[object, ...], bool] = {}  # shapes of calls that were tried, and how that went


def _shape(flex: FlexAttention, group: int) -> tuple[object, ...]:
    """All that a compiled function depends on."""
    keys = flex.cache.storage.keys
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), keys.is_inference()
    return (*keys.shape[1:], keys.dtype, keys.device, group, flex.seen.ancestors.shape, modes)


def _try(flex: FlexAttention, dense: TreeAttention, group: int) -> bool:
    """Compile ``flex`` for its shape and hold it to ``dense``, once, on what the first layer has in its slots."""
    keys, values = flex.cache.read(0)
    rows, nodes = flex.slots.shape
    query = torch.randn(rows, nodes, group * keys.shape[2], keys.shape[3], dtype=keys.dtype, device=keys.device)
    try:
        # Limits on how often a function is compiled are for shapes that nobody foresaw; these are counted here.
        limits: dict[str, object] = {"recompile_limit": MOST_SHAPES, "accumulated_recompile_limit": 2 * MOST_SHAPES}
        with torch._dynamo.config.patch(limits):
            found = flex.attend_slots(query, keys, values)
        difference = float((found - dense.attend_slots(query, keys, values)).abs().max())
        allowed = max(ROUNDINGS * torch.finfo(keys.dtype).eps, LOOSE) * float(values.abs().max())
    except Exception as error:  # compilers, drivers and torch's limits fail in ways of their own, each with its class
        reason = str(error).strip() or type(error).__name__
        _warn(f"it does not run here: {reason.splitlines()[0]}")
        return False
    if difference <= allowed:
        return True
    _warn(f"its results are {difference:.3g} off, with {allowed:.3g} allowed")
    return False


@remember
def _warn(reason: str) -> None:
    logger.warning("attention reads all slots instead of FlexAttention's blocks, which is slower: %s", reason)


@remember
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_attend, dynamic=False, fullgraph=True)


def _seen(tree: Tree, cache: View, start: int) -> VisibleBlocks:
    length = cache.length
    queries = -(-(tree.num_nodes - start) // BLOCK)
    blocks = torch.arange(-(-cache.capacity // BLOCK), device=length.device, dtype=torch.int32)
    whole = (length // BLOCK).to(torch.int32)
    some = ((length + tree.num_nodes + BLOCK - 1) // BLOCK).clamp(max=blocks.shape[0]).to(torch.int32)
    after = (blocks + whole[:, None]) % blocks.shape[0]  # [B, K] the mixed blocks follow the whole ones

    def spread(tensor: Tensor) -> Tensor:
        return tensor[:, None, None].expand(-1, 1, queries, *tensor.shape[1:]).contiguous()

    return VisibleBlocks(
        length=length,
        ancestors=tree.ancestors[:, start:].clone(memory_format=torch.contiguous_format),
        num_mixed=spread((some - whole).clamp(min=0)),
        mixed=spread(after),
        num_whole=spread(whole),
        whole=spread(blocks.expand(length.shape[0], -1)),
    )


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    ancestors: Tensor,
    num_mixed: Tensor,
    mixed: Tensor,
    num_whole: Tensor,
    whole: Tensor,
) -> Tensor:
    """``query`` [B, G * H, n, E], ``keys`` and ``values`` [B, H, S, E] to [B, G * H, n, E]. Tensors alone are inputs,
    so that a compiled form depends on shapes alone."""
    num_nodes = ancestors.shape[-1]

    def sees(row: Tensor, head: Tensor, node: Tensor, slot: Tensor) -> Tensor:
        other = slot - length[row]  # negative where committed
        own = (other < num_nodes) & ancestors[row, node, other.clamp(0, num_nodes - 1)]
        return (other < 0) | own

    mask = BlockMask.from_kv_blocks(
        num_mixed,
        mixed,
        num_whole,
        whole,
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(query.shape[2], keys.shape[2]),
        compute_q_blocks=False,
    )
    out = flex_attention(query, keys, values, block_mask=mask, enable_gqa=True)
    assert isinstance(out, Tensor)
    return out
