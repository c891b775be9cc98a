"""What a GPU does: a large target made on it, plain decoding beside its bandwidth, drafted decoding beside others.

All sides of a batch size are timed in turn, within a given time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Annotated, Any, ClassVar, Literal

import torch

from benchmarks.gpu_sides import (
    BATCHES,
    CONTROL,
    DRAFTED,
    KIND,
    PLAIN,
    Plan,
    attend_densely,
    find,
    make_models,
    run_plan,
)
from benchmarks.inflate.command import DTYPES, read_count
from benchmarks.rates import floor_notes, rates_of
from benchmarks.study import (
    Draft,
    Progress,
    Study,
    Target,
    Threads,
    conditions_of,
    counts,
    last_of,
    named,
    native,
    option,
    pair_of,
)
from paceline.api.prompts import encode
from paceline.bench.columns import Column, Section
from paceline.bench.machine import describe
from paceline.bench.peers.transformers import ASSISTED
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.raw import RawFile, Record, fingerprint
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.bench.suites import prompts_of
from paceline.bench.workbench import check_lengths, check_peers
from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Work, bound
from paceline.models.native.flex_attention import DEVICES

NUM_PROMPTS, PROMPT = 8, 96  # prompts, and tokens of each at most; larger batches have them several times
SHARE_GOAL, SPEEDUP_GOAL = 0.7, 2.0
SIZE = (9.0, 4.2)  # inches
LIMIT = {"color": "black", "linestyle": "-", "marker": ""}  # of the line of what the device allows
CAPTION = (
    "Left: plain decoding beside what the device's memory allows, and drafted decoding, which may pass it. Right: "
    "above 1 the first of the two is the faster; whiskers are 95 % intervals."
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch size; speed-ups are ratios of seconds within a repeat."""

    record: Record
    work: Work
    rates: Rates

    @property
    def void(self) -> bool:
        return self.record["void"]

    @property
    def best(self) -> str:
        """Our fastest drafted side."""
        name = self._fastest(DRAFTED)
        assert name is not None  # as every plan drafts
        return name

    @property
    def assisted(self) -> str | None:
        """transformers' fastest assisted side."""
        return self._fastest(ASSISTED)

    @property
    def tokens_per_step(self) -> float:
        """Of our fastest drafted side."""
        side = self.record["sides"][self.best]
        return side["tokens"] / side["steps"]

    def rate(self, side: str) -> float:
        """Tokens per second."""
        return self.record["sides"][PLAIN]["tokens"] / median(self._seconds(side))

    def over(self, side: str, base: str) -> Estimate:
        """How many times as fast a side is as another."""
        return estimate(paired_ratios(self._seconds(base), self._seconds(side)))

    @property
    def limit(self) -> float:
        """Tokens per second of plain decoding, at most."""
        return self.record["sides"][PLAIN]["tokens"] / least_seconds(self.record, self.work, self.rates)

    @property
    def share(self) -> Estimate:
        """Of the limit that plain decoding reaches."""
        least = least_seconds(self.record, self.work, self.rates)
        return estimate([least / seconds for seconds in self._seconds(PLAIN)])

    @property
    def forward_share(self) -> float | None:
        """The same of the target's forward alone."""
        side = self.record["sides"][PLAIN]
        if not side["phases"] or not side["steps"]:
            return None
        context = round(mean(self.record["prompts"])) + self.record["num_tokens"] // 2
        least = bound(self.work, self.rates, rows=self.record["batch"], nodes=1, slots=context).seconds
        # A step's time counts for every row in it, and so does the step.
        return least * side["steps"] / median(phases[1] for phases in side["phases"])

    def _seconds(self, side: str) -> Sequence[float]:
        return self.record["sides"][side]["seconds"]

    def _fastest(self, kind: str) -> str | None:
        """Of the sides whose names begin with ``kind``."""
        names = [name for name in self.record["sides"] if name.startswith(kind)]
        return min(names, key=lambda name: median(self._seconds(name)), default=None)


def batches_of(run: Record, records: Sequence[Record]) -> list[Batch]:
    """Of one run, every batch size by its last measurement, one whose control held if there is one; rising."""
    work, rates = Work(**run["notes"]["work"]), rates_of(run)
    chosen = last_of(records, run["run"], KIND, lambda record: record["batch"])
    return [
        Batch(record=record, work=work, rates=rates) for record in sorted(chosen, key=lambda record: record["batch"])
    ]


def least_seconds(record: Record, work: Work, rates: Rates) -> float:
    """Of plain decoding of all prompts of a record: one forward for the prompts of a group and one for each token."""
    batch, tokens, lengths = record["batch"], record["num_tokens"], record["prompts"]
    context = round(mean(lengths)) + tokens // 2
    step = bound(work, rates, rows=batch, nodes=1, slots=context).seconds
    prompt = bound(work, rates, rows=batch, nodes=round(mean(lengths)), slots=round(mean(lengths)) // 2).seconds
    return len(lengths) // batch * (tokens * step + prompt)


def goals_of(figures: Sequence[Batch]) -> list[str]:
    """The two goals, in words; only what a sound measurement at batch 1 decides."""
    single = next((line for line in figures if line.record["batch"] == 1), None)
    if single is None:
        return ["batch 1 was not measured: neither goal is decided"]
    words = [f"plain decoding reaches {single.share.value:.0%} of its limit (goal {SHARE_GOAL:.0%})"]
    if single.assisted is not None:
        over = single.over(single.best, single.assisted)
        words.append(f"drafted decoding is {over.value:.2f} times as fast as {single.assisted} (goal {SPEEDUP_GOAL:g})")
    return [*words, *(["batch 1 is void: the device was not quiet"] if single.void else [])]


SPEEDUPS: dict[str, Callable[[Batch], Estimate | None]] = {
    "drafted over plain": lambda line: line.over(line.best, PLAIN),
    f"drafted over {PEER}": lambda line: line.over(line.best, PEER),
    f"plain over {PEER}": lambda line: line.over(PLAIN, PEER),
    f"drafted over {PEER}-assisted": lambda line: line.over(line.best, line.assisted) if line.assisted else None,
}
PLAIN_COLUMNS: list[Column[Batch]] = [
    Column("batch", "record.batch"),
    Column("tokens/s", lambda line: line.rate(PLAIN), ".1f"),
    Column("limit", "limit", ".1f"),
    Column("share", "share", ".0%"),
    Column("forward alone", "forward_share", ".0%"),
    Column("over itself", lambda line: f"{line.over(CONTROL, PLAIN).value:.2f}{' void' if line.void else ''}"),
]
DRAFTED_COLUMNS: list[Column[Batch]] = [
    Column("batch", "record.batch"),
    Column("best", "best"),
    Column("tokens/s", lambda line: line.rate(line.best), ".1f"),
    Column(
        "tokens/step",
        lambda line: line.record["sides"][line.best]["tokens"] / line.record["sides"][line.best]["steps"],
        ".2f",
    ),
    *(Column(name, get, ".2f") for name, get in SPEEDUPS.items()),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Study):
    """A large target made on a GPU, plain beside its bandwidth, drafted beside transformers."""

    kind: ClassVar[str] = KIND
    title: ClassVar[str] = "On a GPU"
    needs: ClassVar[tuple[str, ...]] = ("matplotlib",)

    device: Annotated[str, option("cpu runs the same, in a small form.")] = "cuda"
    parameters: Annotated[str, option("Of the target, such as 8B or 20M.")] = "8B"
    dtype: Annotated[Literal["float32", "bfloat16", "float16", "float64"], option("Precision.")] = "bfloat16"
    target: Target = None
    draft: Draft = None
    batch: Annotated[tuple[int, ...], counts("Batch sizes.")] = BATCHES
    k: Annotated[tuple[int, ...], counts("Draft tokens.")] = (3, 5)
    max_tokens: Annotated[int, option("Of every output.")] = 48
    minutes: Annotated[float, option("For all batch sizes, models not counted.")] = 6.0
    enforce_eager: Annotated[bool, option("Call every operation of our steps, to compare with replaying them.")] = False
    dense: Annotated[bool, option("Attention over all slots, to compare with FlexAttention's.")] = False
    threads: Threads = None

    def plan(self) -> Plan:
        """What is timed."""
        return Plan(batches=self.batch, draft_tokens=self.k, num_tokens=self.max_tokens, minutes=self.minutes)

    def check(self) -> None:
        """Raise ValueError for counts and models that cannot be, and for a device that is not there."""
        self.plan()
        pair_of(self.target, self.draft)
        if not self.report and self.dense and find(self.device).type not in DEVICES:
            raise ValueError(f"--dense compares with FlexAttention, which is not used on {self.device}: leave it out")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        begun, device, plan = time.perf_counter(), find(self.device), self.plan()
        paths = pair_of(self.target, self.draft)
        number = read_count(self.parameters)
        models = make_models(
            *paths,
            num_parameters=number,
            dtype=DTYPES[self.dtype],
            device=device,
            enforce_eager=self.enforce_eager,
            progress=say,
        )
        if self.dense:
            attend_densely(models)
        prompts = [encode(models.target, text)[:PROMPT] for text in prompts_of("mixed", NUM_PROMPTS, seed=0)]
        check_peers(models.target, models.draft)
        check_lengths(models.target, prompts, [plan.num_tokens], num_nodes=1 + max(plan.draft_tokens))
        choices = {
            "device": str(device),
            "enforce_eager": self.enforce_eager,
            "parameters": number,
            "prompts": fingerprint({"prompts": prompts}),
            "draft_tokens": list(plan.draft_tokens),
            "num_tokens": plan.num_tokens,
            "dense": self.dense,
        }
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else describe().processor
        making = {"device": name, "models_seconds": time.perf_counter() - begun}
        run = raw.begin(
            conditions_of(named(paths), self.dtype, **choices),
            lambda: {**floor_notes(native(models.target, paths[0]), say), **making},
        )
        for batch in run_plan(plan, models=models, prompts=prompts, raw=raw, run=run, say=say):
            print(f"no time was left for batch {batch}: the same command goes on, or give more --minutes")

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Batch]]:
        """Plain decoding beside its limit, and drafted decoding beside the others."""
        figures = batches_of(run, records)
        return [
            Section(title="plain decoding and its limit", columns=PLAIN_COLUMNS, lines=figures),
            Section(title="drafted decoding", columns=DRAFTED_COLUMNS, lines=figures),
        ]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the models and the device are, and whether the goals are met."""
        notes, conditions, rates = run["notes"], run["conditions"], rates_of(run)
        peak = rates.products[conditions["dtype"]].peak
        eager = ", whose steps are called eagerly" if conditions["enforce_eager"] else ""
        return [
            f"{notes['device']}: target of {notes['work']['num_weights']:,} weights{eager}, made in "
            f"{notes['models_seconds']:.0f} s; memory is read at {rates.read / 1e9:.0f} GB/s, products run at "
            f"{peak / 1e12:.3g} TFLOP/s",
            *goals_of(batches_of(run, records)),
        ]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """Left, tokens per second over the batch size beside the limit; right, speed-ups with intervals."""
        from paceline.bench import drawing  # needs the optional matplotlib

        measured = batches_of(run, records)
        figures = [line for line in measured if not line.void]
        sizes = [line.record["batch"] for line in figures]

        def panels(axes: Sequence[Any]) -> None:
            left, right = axes
            left.plot(sizes, [line.limit for line in figures], **LIMIT, label="limit of plain decoding")
            left.plot(sizes, [line.rate(PLAIN) for line in figures], label="plain")
            left.plot(sizes, [line.rate(line.best) for line in figures], label="drafted")
            left.set_yscale("log")
            drawing.plain_log(left.yaxis)
            for label, speedup in SPEEDUPS.items():
                found = [(line.record["batch"], value) for line in figures if (value := speedup(line)) is not None]
                drawing.error_bars(right, [at for at, _ in found], [value for _, value in found], label)
            drawing.baseline(right)
            for place, what, name in ((left, "tokens per second", "speed"), (right, "times as fast", "speed-up")):
                drawing.powers_of_two(place, sizes)
                drawing.finish(place, x="batch size", y=what, title=name)

        return drawing.draw_panels(
            panels,
            size=SIZE,
            title=f"{run['notes']['device']}, {title}",
            caption=f"{CAPTION}{drawing.left_out(len(measured) - len(figures), len(measured), 'batch sizes')}",
            columns=2 if figures else 0,
        )
