"""What a study's floor is made of: what the model reads and computes, and how fast the machine does both."""

from dataclasses import asdict
from typing import Any

from benchmarks.study import Progress, date
from paceline.bench.raw import Record
from paceline.hardware.rates import WORKING_SET, Products, Rates, measure_rates
from paceline.models.backend import gemm_for
from paceline.models.native.decoder import DecoderLM
from paceline.models.work import forward_work

LEAST = 4 << 20  # bytes of a working set whose reading takes longer than the call


def floor_notes(lm: DecoderLM, say: Progress, **given: Any) -> dict[str, Any]:
    """The notes of a run: when it was, the work of a forward, and the machine's rates."""
    work = forward_work(lm)
    rates = measure_rates(
        gemm_for=gemm_for,
        dtypes=[lm.dtype],
        device=lm.device,
        working_set=max(LEAST, min(WORKING_SET, work.weight_bytes)),
        progress=say,
        **given,
    )
    return {**date(), "work": asdict(work), "rates": asdict(rates)}


def rates_of(run: Record) -> Rates:
    """The machine's rates that a run's notes hold."""
    fields = dict(run["notes"]["rates"])
    products = {name: Products(**_tuples(one)) for name, one in fields.pop("products").items()}
    return Rates(**fields, products=products)


def _tuples(fields: Record) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
