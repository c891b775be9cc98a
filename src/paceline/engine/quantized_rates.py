"""Measures the speed of products with quantized matrices, by forwards of a model's layers with dummy weights.

Weight packing and the kernels work on whole models, so norms and attention over a few slots are timed together with the
products. Their share is negligible beside large matrices.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from paceline.core.tree import Tree
from paceline.hardware.rates import MANY_ROWS, REPEATS, ROWS, SECONDS, PassClock, Products
from paceline.models.backend import fastest, pack_weights
from paceline.models.base import LM
from paceline.models.loading import assemble, build_on_meta
from paceline.models.memory import copy_to_huge_pages
from paceline.models.native.config import DecoderConfig
from paceline.models.native.decoder import DecoderLM
from paceline.models.work import forward_work


def measure_integers(
    config: DecoderConfig,
    quantization: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    working_set: int,
    rows: Sequence[int] = ROWS,
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Products:
    """Rates of a decoder of ``config`` in a ``quantization`` of models/quantised, with as many layers as fit into
    ``working_set`` bytes.

    Takes some seconds and about ``working_set`` bytes of memory, without embedding and LM head.
    """
    sample = _sample(config, quantization, dtype=dtype, device=device, working_set=working_set)
    work = forward_work(sample)
    pack_weights(sample)
    lm = fastest(sample)
    counts = [*rows, max(rows[-1], min(MANY_ROWS, config.window or MANY_ROWS))]
    timer = PassClock(device, repeats, seconds, clock)
    taken = timer.best([_forward(lm, count, device) for count in counts])
    itemsize = work.weight_bytes / work.num_weights
    speeds = tuple(work.weight_bytes / each for each in taken)
    return Products(
        itemsize=itemsize,
        rows=tuple(rows),
        bytes_per_second=speeds[:-1],
        peak=max(2 * count * speed / itemsize for count, speed in zip(counts, speeds, strict=True)),
    )


def _sample(
    config: DecoderConfig, quantization: str, *, dtype: torch.dtype, device: torch.device, working_set: int
) -> DecoderLM:
    """A decoder with constant weights: the time of a product does not depend on their values."""
    whole = build_on_meta(config, dtype=dtype, quantization=quantization)
    each = sum(part.nbytes for part in whole.blocks[0].parameters())
    few = replace(config, num_layers=max(1, min(config.num_layers, working_set // each)))
    state = {
        name: torch.full(part.shape, 1 if part.dtype in (torch.int8, torch.uint8) else 1e-3, dtype=part.dtype)
        for name, part in build_on_meta(few, dtype=dtype, quantization=quantization).state_dict().items()
    }
    settled = copy_to_huge_pages(state) if device.type == "cpu" else state
    return assemble(few, settled, device=device, quantization=quantization)


def _forward(lm: LM, num_nodes: int, device: torch.device) -> Callable[[], object]:
    """A forward of a chain of ``num_nodes`` nodes."""
    tokens = torch.zeros(1, num_nodes, dtype=torch.int64, device=device)
    tree, cache = Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool)), lm.new_cache(1, num_nodes).view()
    return lambda: lm(tree, cache)
