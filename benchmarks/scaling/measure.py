"""Times the points of every axis in turn, and prompts, and keeps what was found as records. Draws no figure."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.scaling.points import Axis, Prepared
from benchmarks.scaling.ragged import Mix, measure_ragged
from paceline.bench.raw import AXIS, PREFILL, RAGGED, RUN, RawFile, Record, fingerprint
from paceline.bench.statistics import is_void, paired_ratios
from paceline.bench.timing import Clock, time_in_turn
from paceline.core.tree import Tree
from paceline.hardware.rates import Products, Rates
from paceline.models.backend import gemm_for
from paceline.models.base import LM, LogitsFor
from paceline.models.native.decoder import DecoderLM

FORWARD, STEP, CONTROL = "forward", "step", "control"
PROMPTS = (64, 256, 512, 1000)  # tokens
KERNEL, TORCH = "ours", "torch"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often a call is timed, ``repeats`` at least and more until those of a group took ``seconds``, and by what.

    ``processor_time`` counts what the one thread computed, not what passed. Raises ValueError for fewer repeats than 1,
    less than no seconds, and processor time on several threads.
    """

    repeats: int = 7
    seconds: float = 10.0
    processor_time: bool = False

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats={self.repeats}: give at least 1")
        if not self.seconds >= 0:
            raise ValueError(f"seconds={self.seconds}: give 0 or more")
        if self.processor_time and torch.get_num_threads() > 1:
            raise ValueError(f"processor time of {torch.get_num_threads()} threads is the sum of theirs: take one")

    @property
    def clock(self) -> Clock:
        return time.process_time if self.processor_time else time.perf_counter


def begin(raw: RawFile, *, conditions: Record, notes: Callable[[], Record]) -> str:
    """The fingerprint of the run of these conditions, which is put into ``raw`` with its notes if it is not there."""
    run = fingerprint(conditions)
    if not any(record["kind"] == RUN and record["run"] == run for record in raw.records):
        raw.append({"kind": RUN, "run": run, "conditions": conditions, "notes": notes()})
    return run


def has(raw: RawFile, identity: Record) -> bool:
    """Whether ``raw`` holds a record with these fields, of a quiet machine."""
    return any(identity.items() <= record.items() and not record.get("void") for record in raw.records)


def measure_axes(axes: Sequence[Axis], *, target: LM, raw: RawFile, run: str, timing: Timing, say: Progress) -> None:
    """Put into ``raw`` what it lacks of ``axes``: seconds of forwards and of whole steps, and bytes, of every point.

    All points of an axis take turns; the first one's step runs twice in each turn, as the control.
    """
    for axis in axes:
        identity = {"kind": AXIS, "run": run, "axis": axis.name, "points": [asdict(point) for point in axis.points]}
        if has(raw, identity):
            continue
        say(f"{axis.name}: preparing")
        Prepared(axis.points[-1], target)  # what is made once in a process is not a point's own
        prepared = [Prepared(point, target) for point in axis.points]
        say(f"{axis.name}: {len(prepared)} points in turn")
        calls: dict[str, Callable[[], object]] = {}
        before: dict[str, Callable[[], object]] = {}
        for at, one in enumerate(prepared):
            calls[f"{FORWARD} {at}"], calls[f"{STEP} {at}"] = one.forward, one.step
            before[f"{FORWARD} {at}"] = before[f"{STEP} {at}"] = one.rewind
        calls[CONTROL], before[CONTROL] = prepared[0].step, prepared[0].rewind
        taken = time_in_turn(calls, before=before, repeats=timing.repeats, seconds=timing.seconds, clock=timing.clock)
        control = paired_ratios(taken[f"{STEP} 0"], taken[CONTROL])
        found = [
            {
                FORWARD: list(taken[f"{FORWARD} {at}"]),
                STEP: list(taken[f"{STEP} {at}"]),
                "cache_bytes": one.cache_bytes,
                "used_bytes": one.used_bytes,
                "resident_bytes": one.resident_bytes,
            }
            for at, one in enumerate(prepared)
        ]
        raw.append({**identity, "control": median(control), "void": is_void(control), "found": found})


def measure_mixes(mixes: Sequence[Mix], *, target: LM, raw: RawFile, run: str, say: Progress) -> None:
    """Put into ``raw`` what it lacks of ``mixes``: slots reserved and used, and bytes in memory."""
    for mix in mixes:
        identity = {"kind": RAGGED, "run": run, "mix": asdict(mix)}
        if has(raw, identity):
            continue
        say(f"ragged lengths: {mix.name}")
        raw.append({**identity, **measure_ragged(mix, target)})


def measure_prefill(
    lengths: Sequence[int], *, target: LM, eager: DecoderLM, raw: RawFile, run: str, timing: Timing, say: Progress
) -> None:
    """Put into ``raw``, unless it is there, what a forward over as many nodes as a prompt has takes, and its products.

    The products are those of the first layer, ours and torch's in turn, at as many rows.
    """
    identity = {"kind": PREFILL, "run": run, "lengths": list(lengths)}
    if has(raw, identity):
        return
    say("prompts read at once")
    forwards = {f"{length}": _reading(target, length) for length in lengths}
    taken = time_in_turn(forwards, repeats=min(3, timing.repeats), seconds=0.0, clock=timing.clock)
    products: list[dict[str, Any]] = []
    for name, weight in _matrices(eager).items():
        ours = gemm_for(weight)
        for length in lengths:
            say(f"products of {length} rows: {name}")
            x = torch.randn(length, weight.shape[1]).to(weight.dtype)
            both: dict[str, Callable[[], object]] = {
                KERNEL: lambda x=x, ours=ours: ours(x),
                TORCH: lambda x=x, weight=weight: torch.nn.functional.linear(x, weight),
            }
            spent = time_in_turn(both, repeats=timing.repeats, seconds=0.0, clock=timing.clock)
            flops = 2 * length * weight.numel()
            rates = {side: [flops / one for one in values] for side, values in spent.items()}
            products.append({"matrix": name, "shape": list(weight.shape), "rows": length, "flops": rates})
    raw.append({**identity, "seconds": [list(values) for values in taken.values()], "products": products})


def rates_of(record: Record) -> Rates:
    """The machine's rates that a run's notes hold."""
    fields = dict(record["notes"]["rates"])
    products = {name: Products(**_tuples(one)) for name, one in fields.pop("products").items()}
    return Rates(**fields, products=products)


def _tuples(fields: Record) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _reading(target: LM, length: int) -> Callable[[], object]:
    cache = target.new_cache(1, length).view()
    tokens = torch.randint(target.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    tree = Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool))
    return lambda: target(tree, cache, logits_for=LogitsFor.NONE)


def _matrices(lm: DecoderLM) -> dict[str, Tensor]:
    """Of the first layer, as they are multiplied with."""
    prefix = "blocks.0."
    return {
        name.removeprefix(prefix).removesuffix(".weight"): tensor
        for name, tensor in lm.state_dict().items()
        if name.startswith(prefix) and tensor.dim() == 2
    }
