"""What a GPU does: a large target made on it, plain decoding beside its bandwidth, drafted decoding beside others."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, ClassVar, Literal

import torch

from benchmarks.gpu.measure import BATCHES, CONTROL, DRAFTED, KIND, PLAIN, Plan, run_plan
from benchmarks.inflate.command import DTYPES, read_count
from benchmarks.inflate.on_device import attend_densely, make_models
from benchmarks.rates import floor_notes, rates_of
from benchmarks.study import (
    Progress,
    Study,
    conditions_of,
    counts,
    last_of,
    named,
    native,
    option,
    pair_of,
)
from paceline.api.prompts import encode
from paceline.bench.columns import Column, Section, interval, number
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
SIZE = (9.0, 3.8)  # inches


def find(name: str) -> torch.device:
    """The device of this name. Raises ValueError, saying what is missing, where there is none."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        reason = (
            "torch finds no device (is there one, and does its driver run?)"
            if torch.version.cuda
            else f"torch {torch.__version__} was built without CUDA; install a build that has it"
        )
        raise ValueError(f"no CUDA device: {reason}. --device cpu --parameters 20M runs the same in a small form")
    return device


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """One batch size; speed-ups are ratios of seconds within a repeat."""

    batch: int
    void: bool
    control: float
    plain: float  # tokens per second
    limit: float  # tokens per second of plain decoding, at most
    share: Estimate  # of the limit that plain decoding reaches
    forward_share: float | None  # the same of the target's forward alone
    best: str  # our fastest drafted side
    drafted: float  # its tokens per second
    tokens_per_step: float
    over_plain: Estimate
    assisted: str | None  # transformers' fastest assisted side
    over_assisted: Estimate | None  # of our fastest
    plain_over_peer: Estimate  # our plain decoding over transformers'
    over_peer: Estimate  # our drafted decoding over transformers' plain


def batches_of(run: Record, records: Sequence[Record]) -> list[BatchFigures]:
    """Of one run, every batch size by its last measurement, one whose control held if there is one; rising."""
    work, rates = Work(**run["notes"]["work"]), rates_of(run)
    chosen = last_of(records, run["run"], KIND, lambda record: record["batch"])
    return [_figures(record, work, rates) for record in sorted(chosen, key=lambda record: record["batch"])]


def least_seconds(record: Record, work: Work, rates: Rates) -> float:
    """Of plain decoding of all prompts of a record: one forward for the prompts of a group and one for each token."""
    batch, tokens, lengths = record["batch"], record["num_tokens"], record["prompts"]
    context = round(mean(lengths)) + tokens // 2
    step = bound(work, rates, rows=batch, nodes=1, slots=context).seconds
    prompt = bound(work, rates, rows=batch, nodes=round(mean(lengths)), slots=round(mean(lengths)) // 2).seconds
    return len(lengths) // batch * (tokens * step + prompt)


def _figures(record: Record, work: Work, rates: Rates) -> BatchFigures:
    sides = record["sides"]
    plain, peer = sides[PLAIN]["seconds"], sides[PEER]["seconds"]
    tokens = sides[PLAIN]["tokens"]
    least = least_seconds(record, work, rates)
    best, assisted = _fastest(sides, DRAFTED), _fastest(sides, ASSISTED)
    assert best is not None  # as every plan drafts
    ours = sides[best]["seconds"]
    return BatchFigures(
        batch=record["batch"],
        void=record["void"],
        control=median(paired_ratios(plain, sides[CONTROL]["seconds"])),
        plain=tokens / median(plain),
        limit=tokens / least,
        share=estimate([least / seconds for seconds in plain]),
        forward_share=_forward_share(record, work, rates),
        best=best,
        drafted=tokens / median(ours),
        tokens_per_step=tokens / sides[best]["steps"],
        over_plain=estimate(paired_ratios(plain, ours)),
        assisted=assisted,
        over_assisted=None if assisted is None else estimate(paired_ratios(sides[assisted]["seconds"], ours)),
        plain_over_peer=estimate(paired_ratios(peer, plain)),
        over_peer=estimate(paired_ratios(peer, ours)),
    )


def _fastest(sides: Record, kind: str) -> str | None:
    """Of the sides whose names begin with ``kind``."""
    names = [name for name in sides if name.startswith(kind)]
    return min(names, key=lambda name: median(sides[name]["seconds"]), default=None)


def _forward_share(record: Record, work: Work, rates: Rates) -> float | None:
    """Of the limit that the forwards of plain steps reach by themselves."""
    side = record["sides"][PLAIN]
    if not side["phases"] or not side["steps"]:
        return None
    context = round(mean(record["prompts"])) + record["num_tokens"] // 2
    least = bound(work, rates, rows=record["batch"], nodes=1, slots=context).seconds
    # A step's time counts for every row in it, and so does the step.
    return least * side["steps"] / median(phases[1] for phases in side["phases"])


def goals_of(figures: Sequence[BatchFigures]) -> list[str]:
    """The two goals, in words; only what a sound measurement at batch 1 decides."""
    single = next((line for line in figures if line.batch == 1), None)
    if single is None:
        return ["batch 1 was not measured: neither goal is decided"]
    words = [f"plain decoding reaches {single.share.value:.0%} of its limit (goal {SHARE_GOAL:.0%})"]
    if single.over_assisted is not None:
        words.append(
            f"drafted decoding is {single.over_assisted.value:.2f} times as fast as {single.assisted} "
            f"(goal {SPEEDUP_GOAL:g})"
        )
    return [*words, *(["batch 1 is void: the device was not quiet"] if single.void else [])]


RATIO = interval(".2f", "{} ({}-{})")
PLAIN_COLUMNS: list[Column[BatchFigures]] = [
    Column(heading="batch", get=lambda line: line.batch),
    Column(heading="tokens/s", get=lambda line: line.plain, form=number(".1f")),
    Column(heading="limit", get=lambda line: line.limit, form=number(".1f")),
    Column(heading="share", get=lambda line: line.share, form=interval(".0%", "{} ({}-{})")),
    Column(heading="forward alone", get=lambda line: line.forward_share, form=number(".0%")),
    Column(heading="over itself", get=lambda line: f"{line.control:.2f}{' void' if line.void else ''}"),
]
DRAFTED_COLUMNS: list[Column[BatchFigures]] = [
    Column(heading="batch", get=lambda line: line.batch),
    Column(heading="best", get=lambda line: line.best),
    Column(heading="tokens/s", get=lambda line: line.drafted, form=number(".1f")),
    Column(heading="tokens/step", get=lambda line: line.tokens_per_step, form=number(".2f")),
    Column(heading="over plain", get=lambda line: line.over_plain, form=RATIO),
    Column(heading="over assisted", get=lambda line: line.over_assisted, form=RATIO),
    Column(heading=f"over {PEER}", get=lambda line: line.over_peer, form=RATIO),
    Column(heading=f"plain over {PEER}", get=lambda line: line.plain_over_peer, form=RATIO),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Study):
    """A large target made on a GPU, plain beside its bandwidth, drafted beside transformers."""

    kind: ClassVar[str] = KIND
    title: ClassVar[str] = "On a GPU"
    needs_drawing: ClassVar[bool] = True

    device: Annotated[str, option("cpu runs the same, in a small form.")] = "cuda"
    parameters: Annotated[str, option("Of the target, such as 8B or 20M.")] = "8B"
    dtype: Annotated[Literal["float32", "bfloat16", "float16", "float64"], option("Precision.")] = "bfloat16"
    target: Annotated[Path | None, option("Directory of the small target; the embedded pair by default.")] = None
    draft: Annotated[Path | None, option("Directory of its draft.")] = None
    batch: Annotated[tuple[int, ...], counts("Batch sizes.")] = BATCHES
    k: Annotated[tuple[int, ...], counts("Draft tokens.")] = (3, 5)
    max_tokens: Annotated[int, option("Of every output.")] = 48
    minutes: Annotated[float, option("For all batch sizes, models not counted.")] = 6.0
    enforce_eager: Annotated[bool, option("Call every operation of our steps, to compare with replaying them.")] = False
    dense: Annotated[bool, option("Attention over all slots, to compare with FlexAttention's.")] = False
    threads: Annotated[int | None, option("Of torch; its own choice by default.")] = None

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

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[BatchFigures]]:
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

        figures = batches_of(run, records)
        sizes = [line.batch for line in figures]

        def panels(axes: Sequence[Any]) -> None:
            left, right = axes
            left.plot(sizes, [line.limit for line in figures], color="black", label="limit of plain decoding")
            left.plot(sizes, [line.plain for line in figures], marker="o", label="plain")
            left.plot(sizes, [line.drafted for line in figures], marker="o", label="drafted")
            left.set_yscale("log")
            drawing.plain_log(left.yaxis)
            for label, name in (
                ("drafted over plain", "over_plain"),
                (f"drafted over {PEER}", "over_peer"),
                (f"plain over {PEER}", "plain_over_peer"),
                (f"drafted over {PEER}-assisted", "over_assisted"),
            ):
                lines = [line for line in figures if getattr(line, name) is not None]
                values = [getattr(line, name) for line in lines]
                drawing.error_bars(right, [line.batch for line in lines], values, label, capsize=2)
            drawing.baseline(right)
            for place, what in ((left, "tokens per second"), (right, "times as fast")):
                drawing.powers_of_two(place, sizes)
                drawing.finish(place, x="batch size", y=what)

        return drawing.draw_panels(panels, size=SIZE, title=f"{run['notes']['device']}, {title}", columns=2)
