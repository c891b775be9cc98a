"""``paceline roofline``: the speed limit of this machine for a model. Reads no weights, decodes nothing."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import torch
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paceline.api.loading import find_device, find_dtype
from paceline.bench.machine import describe
from paceline.cli.checkpoint_facts import Found, read_checkpoint
from paceline.cli.commands.roofline import Roofline
from paceline.cli.console import make_table
from paceline.cli.exit_codes import EXIT_OK
from paceline.cli.models import check_draft_quantization
from paceline.engine.quantized_rates import measure_integers
from paceline.hardware.rates import WORKING_SET, Progress, Rates, measure_rates
from paceline.hardware.roofline import Work, bound
from paceline.hardware.speed_limit import Limit, limit
from paceline.models.backend import gemm_for
from paceline.models.work import forward_work

LEAST = 4 << 20  # bytes; reading fewer takes less time than the call
GIGA = 1e9
COMMON = 3  # precisions that leave room in the table


def roofline(options: Roofline) -> int:
    """Measure and print."""
    series = _acceptance(options)
    dtype = find_dtype(options.dtype)
    device = find_device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    target = None if options.model is None else _read(options.model, dtype, options.quantization)
    draft = None
    if target is not None and options.draft is not None:
        draft = _read(options.draft, target.loaded.dtype, options.draft_quantization)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.processor_time and (torch.get_num_threads() > 1 or device.type != "cpu"):
        raise ValueError("--processor-time: it measures one CPU thread; give --threads 1 --device cpu")
    notes = Console(stderr=True, highlight=False)
    clock = time.process_time if options.processor_time else time.perf_counter
    with notes.status("measuring ...") as status:

        def progress(what: str) -> None:
            status.update(f"{what} ...")

        rates = measure_rates(
            gemm_for=gemm_for,
            dtypes=[torch.float32, torch.bfloat16, *([] if target is None else [target.loaded.dtype])],
            device=device,
            working_set=_working_set(options, target, draft),
            progress=progress,
            clock=clock,
        )
        for found in (target, draft):
            if found is not None:
                rates = _with_integers(rates, found, device, progress=progress, clock=clock)
    limits = [] if target is None else [_limit(options, target, draft, rates, accepted) for accepted in ([], *series)]
    works = {"target": _work(target), "draft": _work(draft)}
    known = {name: work for name, work in works.items() if work is not None}
    if options.json:
        forwards = {name: asdict(work) for name, work in known.items()}
        found = {"rates": _rates(rates), "forwards": forwards, "limits": _limits(limits)}
        print(json.dumps({"machine": str(describe()), **found}))
    else:
        _print(rates, known, limits)
    return EXIT_OK


def _read(model: str, dtype: torch.dtype | None, quantization: str | None) -> Found:
    return read_checkpoint(model, dtype=dtype, revision=None, backend="native", quantization=quantization)


def _acceptance(options: Roofline) -> list[list[float]]:
    """For each draft length that is reckoned, the acceptance rate of each position. Raises ValueError."""
    check_draft_quantization(options.draft_quantization, draft=options.draft)
    needing = (
        ("--draft", options.draft),
        ("--acceptance", options.acceptance),
        ("--quantization", options.quantization),
    )
    for name, given in needing:
        if given is not None and options.model is None:
            raise ValueError(f"{name} {given}: it needs a model, give --model DIR")
    count = options.num_draft_tokens
    if options.acceptance is None:
        return [[1.0] * count]
    try:
        shares = [float(share) for share in options.acceptance.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"--acceptance {options.acceptance}: give a share from 0 to 1, or several: 0.8,0.6,0.5")
    if len(shares) == 1:
        return [shares * count]
    if len(shares) < count:
        raise ValueError(
            f"--acceptance {options.acceptance}: {len(shares)} positions for --num-draft-tokens {count}: give a share "
            "for each, or one for all"
        )
    return [shares[:length] for length in range(1, count + 1)]


def _working_set(options: Roofline, target: Found | None, draft: Found | None) -> int:
    """Bytes that a step reads, where the machine's caches may hold them; else more than caches hold."""
    if target is None:
        return WORKING_SET
    both = target.weight_bytes + (0 if draft is None else draft.weight_bytes)
    return max(LEAST, min(WORKING_SET, both))


def _limit(options: Roofline, target: Found, draft: Found | None, rates: Rates, accepted: list[float]) -> Limit:
    assert target.decoder is not None  # as the backend is native
    return limit(
        forward_work(target.decoder),
        _work(draft),
        rates,
        acceptance=accepted,
        rows=options.batch_size,
        slots=options.context,
    )


def _with_integers(
    rates: Rates, found: Found, device: torch.device, *, progress: Progress, clock: Callable[[], float]
) -> Rates:
    """``rates`` and those of the products of ``found``, where its matrices are integers and were not measured."""
    work = _work(found)
    if work is None or work.quantization is None or work.products in rates.products:
        return rates
    assert found.decoder is not None
    progress(f"multiplying in {work.products}")
    products = measure_integers(
        found.decoder.config,
        work.quantization,
        dtype=found.loaded.dtype,
        device=device,
        working_set=rates.working_set,
        clock=clock,
    )
    read = max(rates.read, products.bytes_per_second[0])  # a product reads too
    # Quantized products are not faster than float products, so the limit stays a limit.
    products = replace(products, peak=max(products.peak, rates.products[work.dtype].peak))
    return replace(rates, read=read, products={**rates.products, work.products: products})


def _work(found: Found | None) -> Work | None:
    return None if found is None or found.decoder is None else forward_work(found.decoder)


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


def _limits(limits: list[Limit]) -> list[dict[str, object]]:
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


def _print(rates: Rates, works: Mapping[str, Work], limits: list[Limit]) -> None:
    console = Console(highlight=False)
    console.print(Text("machine", "bold"))
    console.print(Padding(Text(str(describe())), (0, 0, 0, 2)))
    console.print(
        Text(
            f"  {rates.working_set / 2**20:.0f} MiB on {rates.device}, threads: {rates.num_threads}; "
            f"reads {rates.read / GIGA:.1f} GB/s, copies {rates.copy / GIGA:.1f} GB/s"
        )
    )
    console.print(Text("matrix products", "bold"))
    console.print(_products(rates))
    if any(work.quantization is not None for work in works.values()):
        console.print(Text("  integers are timed in whole forwards of the model's layers", "dim"))
    if limits:
        console.print(Text("a forward", "bold"))
        console.print(_forwards(rates, works))
        console.print(Text("decoding", "bold"))
        console.print(_decoding(limits))


def _products(rates: Rates) -> Table:
    space = 2 if len(rates.products) <= COMMON else 1
    found = rates.products.values()
    titles = ["rows"]
    for name in rates.products:
        titles += [name.replace(" ", "\n") + " GB/s", "GFLOP/s"]  # of integers: their floats above
    rows = [
        [str(count), *(cell for one in found for cell in (_giga(one.bytes_per_second[at], 1), _giga(one.flops[at])))]
        for at, count in enumerate(next(iter(found)).rows)
    ]
    peaks = ["most", *(cell for one in found for cell in ("", _giga(one.peak)))]
    return make_table(titles, [*rows, peaks], num_left=0, space=space)


def _giga(value: float, digits: int = 0) -> str:
    return f"{value / GIGA:.{digits}f}"


def _forwards(rates: Rates, works: Mapping[str, Work]) -> Table:
    """What each model reads and computes, and from how many nodes on computing takes longer than reading."""
    titles = ("", "reads\nMB", "and KB\n/slot", "computes\nMFLOP/node", "and KFLOP\n/node and slot", "reads for\nms")
    rows: list[tuple[str, ...]] = []
    for name, work in works.items():
        one = bound(work, rates, rows=1, nodes=1, slots=0)
        rows.append(
            (
                name,
                f"{work.weight_bytes / 1e6:.1f}",
                f"{work.slot_bytes / 1e3:.1f}",
                f"{2 * work.num_weights / 1e6:.1f}",
                f"{work.slot_flops / 1e3:.1f}",
                f"{1000 * one.memory:.3g}",
                f"{1000 * one.arithmetic:.3g}",
                f"{one.memory / one.arithmetic:.1f}",
            )
        )
    return make_table((*titles, "a node\nms", "equal at\nnodes"), rows)


def _decoding(limits: list[Limit]) -> Table:
    titles = ("drafted", "tokens\n/step", "least\nms", "bound\nby", "limit\ntokens/s", "attainable\ntokens/s")
    rows = (
        (
            str(one.num_draft_tokens),
            f"{one.tokens_per_step:.2f}",
            f"{1000 * one.seconds:.3g}",
            one.target.binding,
            f"{one.tokens_per_second:,.1f}",
            f"{one.attainable_tokens_per_second:,.1f}",
            f"{one.speed_up(limits[0]):.2f}",
            "" if one.num_draft_tokens == 0 else f"{one.break_even(limits[0]):.2f}",
        )
        for one in limits
    )
    return make_table((*titles, "speed-up", "pays\nfrom"), rows, num_left=0)
