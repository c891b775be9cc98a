"""``paceline roofline``: the speed limit of this machine for a model. Reads no weights, decodes nothing."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.console import make_table
from paceline.cli.options import (
    AT_LEAST_1,
    MODEL_OR_HEAD_PATH,
    MODEL_PATH,
    Device,
    DraftQuantization,
    Dtype,
    Json,
    Quantization,
    Threads,
    at_least,
    check_draft_quantization,
)
from paceline.text.valid_json import to_json

if TYPE_CHECKING:
    from paceline.hardware.rates import Rates
    from paceline.hardware.roofline import Work
    from paceline.hardware.speed_limit import Limit

GIGA = 1e9
COMMON = 3  # precisions that leave room in the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline(Command):
    """Measure the speed limit of this machine for decoding, plain and with drafts.

    Times memory reads and matrix products, which takes some seconds. These and the sizes in a model's files give the
    minimum time of a step: no code with these weights is faster than `limit`. `attainable` uses matrix products as
    fast as they were measured with so few rows. The speed-up is that of drafting at this speed; drafting pays from
    that many tokens per step.

    Examples:

        paceline roofline
        paceline roofline --model DIR --draft SMALL_DIR --acceptance 0.6 --threads 1
        paceline roofline --model DIR --acceptance 0.5,0.3,0.2 --num-draft-tokens 3 --json
    """

    model: Annotated[str | None, MODEL_PATH] = None
    """Directory or Hub id; without it only the machine is measured."""
    draft: Annotated[str | None, MODEL_OR_HEAD_PATH] = None
    """Draft model; without it drafts are assumed to cost nothing."""
    num_draft_tokens: Annotated[int, AT_LEAST_1] = 5
    """Tokens drafted per step."""
    acceptance: str | None = None
    """Acceptance rate, or a list with one rate per position: 0.8,0.6,0.5. Without it every drafted token is assumed
    to be accepted."""
    batch_size: Annotated[int, AT_LEAST_1] = 1
    """Sequences per batch."""
    context: Annotated[int, at_least(0)] = 512
    """Cache slots that every sequence reads."""
    dtype: Dtype = None
    quantization: Quantization = None
    draft_quantization: DraftQuantization = None
    device: Device = None
    threads: Threads = None
    processor_time: bool = False
    """Measure CPU time of one thread instead of wall time, for a machine that runs other programs."""
    json: Json = False

    def run(self) -> int:
        """Measure and print."""
        import torch

        from paceline.api.checkpoint import Checkpoint, read_checkpoint
        from paceline.api.loading import find_device, find_dtype
        from paceline.api.roofline import measure_roofline
        from paceline.bench.machine import describe

        def read(model: str, dtype: torch.dtype | None, quantization: str | None) -> Checkpoint:
            return read_checkpoint(model, dtype=dtype, revision=None, backend="native", quantization=quantization)

        acceptance = self._rates_by_length()
        dtype, device = find_dtype(self.dtype), find_device(self.device)
        target = None if self.model is None else read(self.model, dtype, self.quantization)
        draft = None
        if target is not None and self.draft is not None:
            draft = read(self.draft, target.loaded.dtype, self.draft_quantization)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self.processor_time and (torch.get_num_threads() > 1 or device.type != "cpu"):
            raise ValueError("--processor-time: it measures one CPU thread; give --threads 1 --device cpu")
        with Console(stderr=True, highlight=False).status("measuring ...") as status:
            found = measure_roofline(
                target,
                draft,
                acceptance=acceptance,
                batch_size=self.batch_size,
                context=self.context,
                device=device,
                clock=time.process_time if self.processor_time else time.perf_counter,
                progress=lambda what: status.update(f"{what} ..."),
            )
        machine = str(describe())
        if self.json:
            print(to_json({"machine": machine, **found.as_dict()}))
        else:
            _print(machine, found.rates, found.works, found.limits)
        return EXIT_OK

    def _rates_by_length(self) -> list[list[float]]:
        """For each draft length that is computed, the acceptance rate of each position. Raises ValueError."""
        check_draft_quantization(self.draft_quantization, draft=self.draft)
        for name in ("draft", "acceptance", "quantization"):
            given = getattr(self, name)
            if given is not None and self.model is None:
                raise ValueError(f"--{name} {given}: it needs a model, give --model DIR")
        count = self.num_draft_tokens
        if self.acceptance is None:
            return [[1.0] * count]
        try:
            shares = [float(share) for share in self.acceptance.split(",")]
        except ValueError:
            shares = []
        if not shares or not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"--acceptance {self.acceptance}: give a share from 0 to 1, or several: 0.8,0.6,0.5")
        if len(shares) == 1:
            return [shares * count]
        if len(shares) < count:
            raise ValueError(
                f"--acceptance {self.acceptance}: {len(shares)} positions for --num-draft-tokens {count}: give a share "
                "for each, or one for all"
            )
        return [shares[:length] for length in range(1, count + 1)]


def _print(machine: str, rates: "Rates", works: "Mapping[str, Work]", limits: "Sequence[Limit]") -> None:
    console = Console(highlight=False)
    console.print(Text("machine", "bold"))
    console.print(Padding(Text(machine), (0, 0, 0, 2)))
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


def _products(rates: "Rates") -> Table:
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


def _forwards(rates: "Rates", works: "Mapping[str, Work]") -> Table:
    """What each model reads and computes, and from how many nodes on computing takes longer than reading."""
    from paceline.hardware.roofline import bound

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


def _decoding(limits: "Sequence[Limit]") -> Table:
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
