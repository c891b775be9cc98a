"""How near decoding comes to what the machine allows for the acceptance that was seen. Pure: measures nothing.

The limit of a step is the least time of its forwards (engine/floor): one of the target over all nodes, and as many of
the draft model as it ran. Weights are read once in each; caches, and all else that a step does, are left out. The rates
of the machine are the medians of those that were measured beside the sides, repeat by repeat. Each instruction set that
was named has rates of its own: its kernel computes them.
"""

from collections.abc import Sequence
from statistics import median

import torch

from paceline.bench.instruction_sets import within
from paceline.bench.raw import Record
from paceline.bench.sweep import CANDIDATE, Cell, on_set
from paceline.bench.trees import nodes_of, runs_draft
from paceline.hardware.rates import Products, Rates, measure_rates, reading
from paceline.hardware.roofline import Work, bound
from paceline.models.backend import gemm_for
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM

READ, FLOPS = "read", "flops"  # bytes and operations per second
REPEATS = 2  # passes of each measurement
LARGEST, SMALLEST = 512 << 20, 4 << 20  # bytes of what is read


def rates_beside(lm: DecoderLM, isa: str | None = None) -> dict[str, float]:
    """READ of the weights of ``lm`` in place, and FLOPS in its precision, of this machine now and within ``isa``.

    What the system gave a process may be memory of another part of the machine, half as fast as the rest, so that only
    these weights tell what reading them takes. Takes about a second for large models.
    """
    storage = max((parameter.untyped_storage() for parameter in lm.parameters()), key=lambda one: one.nbytes())
    weights = torch.empty(0, dtype=torch.uint8, device=lm.device).set_(storage)
    working_set = max(SMALLEST, min(LARGEST, weights.nbytes))
    with within(isa):
        rates = measure_rates(
            gemm_for=gemm_for,
            dtypes=[lm.dtype],
            device=lm.device,
            working_set=working_set,
            rows=(1,),
            repeats=REPEATS,
            seconds=0.0,
        )
    read = reading(weights, repeats=4 * REPEATS, seconds=0.0)
    return {READ + on_set(isa): read, FLOPS + on_set(isa): rates.products[dtype_name(lm.dtype)].peak}


def limit_of(record: Record, conditions: Record, cell: Cell) -> float | None:
    """Tokens per second that the machine allows a cell of our own at the tokens per step that it had.

    None for peers, and where nothing says what its forwards read, or how fast the machine is.
    """
    work, steps, rates = conditions.get("work"), record["steps"][CANDIDATE], record.get("rates")
    if not work or not steps or not rates or not all(rates) or not record["decode_seconds"][CANDIDATE]:
        return None
    target = Work(**work["target"])
    draft = None if work["draft"] is None else Work(**work["draft"])
    speed = _rates([one.products for one in (target, draft) if one is not None], rates, cell.isa)
    drafted = _drafted_per_step([text["counts"] for text in record["texts"] if text["counts"] is not None])
    nodes = nodes_of(cell.drafter) or 1 + drafted
    seconds = bound(target, speed, rows=cell.batch_size, nodes=nodes, slots=0).seconds
    if runs_draft(cell.drafter):
        if draft is None:
            return None
        # A token deeper is a forward more.
        seconds += drafted * bound(draft, speed, rows=cell.batch_size, nodes=1, slots=0).seconds
    return cell.batch_size * record["num_tokens"] / steps / seconds


def _rates(names: Sequence[str], taken: Sequence[Record], isa: str | None) -> Rates:
    """Integers are multiplied as the floats that they encode, which bounds their arithmetic."""
    read, flops = (median(rates[name + on_set(isa)] for rates in taken) for name in (READ, FLOPS))
    products = Products(itemsize=1, rows=(1,), bytes_per_second=(read,), peak=flops)
    return Rates(device="", num_threads=0, working_set=0, read=read, copy=0.0, products=dict.fromkeys(names, products))


def _drafted_per_step(counts: Sequence[Record]) -> float:
    """Mean depth of what was proposed in a step."""
    steps = sum(found["steps"] for found in counts)
    return sum(sum(found["drafted"]) for found in counts) / steps if steps else 0.0
