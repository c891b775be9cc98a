"""The roofline of decoding on this machine: its rates, what models read and compute, and the limits that follow.

Reads no weights and decodes nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from paceline.api.checkpoint import Checkpoint
from paceline.engine.quantized_rates import measure_integers
from paceline.hardware.rates import WORKING_SET, Progress, Rates, measure_rates
from paceline.hardware.roofline import Work
from paceline.hardware.speed_limit import Limit, limit
from paceline.models.backend import gemm_for
from paceline.models.native.decoder import DecoderLM
from paceline.models.work import forward_work

LEAST = 4 << 20  # bytes; reading fewer takes less time than the call


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The rates of a machine; the work of a forward of ``target`` and ``draft``; the limits, plain decoding first."""

    rates: Rates
    works: Mapping[str, Work]
    limits: Sequence[Limit]

    def as_dict(self) -> dict[str, object]:
        """All figures, by names for JSON."""
        return {
            "rates": _rates(self.rates),
            "forwards": {name: asdict(work) for name, work in self.works.items()},
            "limits": _limits(self.limits),
        }


def measure_roofline(
    target: Checkpoint | None,
    draft: Checkpoint | None = None,
    *,
    acceptance: Sequence[Sequence[float]],
    batch_size: int,
    context: int,
    device: torch.device,
    clock: Callable[[], float],
    progress: Progress,
) -> Roofline:
    """Measure the machine, and compute the limits of ``target``, if given, without drafts and for each ``acceptance``.

    ``acceptance`` holds an acceptance rate for each position of a draft.
    """
    rates = measure_rates(
        gemm_for=gemm_for,
        dtypes=[torch.float32, torch.bfloat16, *([] if target is None else [target.loaded.dtype])],
        device=device,
        working_set=_working_set(target, draft),
        progress=progress,
        clock=clock,
    )
    works: dict[str, Work] = {}
    for name, found in (("target", target), ("draft", draft)):
        if found is not None and found.decoder is not None:
            works[name] = forward_work(found.decoder)
            rates = _with_integers(rates, found.decoder, device, progress=progress, clock=clock)
    limits = [
        limit(works["target"], works.get("draft"), rates, acceptance=rate, rows=batch_size, slots=context)
        for rate in ((), *acceptance)
        if "target" in works
    ]
    return Roofline(rates=rates, works=works, limits=limits)


def measure_model_rates(lm: DecoderLM, *, progress: Progress, clock: Callable[[], float] = time.perf_counter) -> Rates:
    """Measure the rates for what a forward of ``lm`` reads, in its precision, with torch's threads."""
    work = forward_work(lm)
    rates = measure_rates(
        gemm_for=gemm_for,
        dtypes=[lm.dtype],
        device=lm.device,
        working_set=max(LEAST, min(WORKING_SET, work.weight_bytes)),
        progress=progress,
        clock=clock,
    )
    return _with_integers(rates, lm, lm.device, progress=progress, clock=clock)


def _working_set(target: Checkpoint | None, draft: Checkpoint | None) -> int:
    """Bytes that a step reads, where the machine's caches may hold them; else more than caches hold."""
    if target is None:
        return WORKING_SET
    both = target.weight_bytes + (0 if draft is None else draft.weight_bytes)
    return max(LEAST, min(WORKING_SET, both))


def _with_integers(
    rates: Rates,
    lm: DecoderLM,
    device: torch.device,
    *,
    progress: Progress,
    clock: Callable[[], float],
) -> Rates:
    """``rates`` and those of the products of ``lm``, where its matrices are integers and were not measured."""
    work = forward_work(lm)
    if work.quantization is None or work.products in rates.products:
        return rates
    progress(f"multiplying in {work.products}")
    products = measure_integers(
        lm.config,
        work.quantization,
        dtype=lm.dtype,
        device=device,
        working_set=rates.working_set,
        clock=clock,
    )
    read = max(rates.read, products.bytes_per_second[0])  # a product reads too
    # Quantized products are not faster than float products, so the limit stays a limit.
    products = replace(products, peak=max(products.peak, rates.products[work.dtype].peak))
    return replace(rates, read=read, products={**rates.products, work.products: products})


def _rates(rates: Rates) -> dict[str, object]:
    return {
        "device": rates.device,
        "threads": rates.num_threads,
        "working_set": rates.working_set,
        "read_bytes_per_second": rates.read,
        "copy_bytes_per_second": rates.copy,
        "products": {
            name: [
                {"rows": rows, "weight_bytes_per_second": speed, "flops": flops}
                for rows, speed, flops in zip(found.rows, found.bytes_per_second, found.flops, strict=True)
            ]
            for name, found in rates.products.items()
        },
    }


def _limits(limits: Sequence[Limit]) -> list[dict[str, object]]:
    return [
        {
            "num_draft_tokens": one.num_draft_tokens,
            "tokens_per_step": one.tokens_per_step,
            "step_seconds": one.seconds,
            "target_memory_seconds": one.target.memory,
            "target_arithmetic_seconds": one.target.arithmetic,
            "draft_seconds": 0.0 if one.draft is None else one.num_draft_tokens * one.draft.seconds,
            "tokens_per_second": one.tokens_per_second,
            "attainable_step_seconds": one.attainable,
            "attainable_tokens_per_second": one.attainable_tokens_per_second,
            "attainable_speed_up": one.speed_up(limits[0]),
            "break_even_tokens_per_step": one.break_even(limits[0]),
        }
        for one in limits
    ]
