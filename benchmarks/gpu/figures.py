"""What records of a device say: plain decoding beside its limit, drafted beside transformers'. Times nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.gpu.measure import CONTROL, PLAIN
from benchmarks.scaling.measure import rates_of
from paceline.bench.peers.transformers import ASSISTED
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.raw import DEVICE, RUN, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Work, bound

SHARE_GOAL, SPEEDUP_GOAL = 0.7, 2.0
OWN_DRAFTED = "drafted"  # what names of our drafted sides begin with


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


def last_run(records: Sequence[Record]) -> Record:
    """The last run of a device in ``records``. Raises ValueError for none."""
    runs = [record for record in records if record["kind"] == RUN and "device" in record.get("notes", {})]
    if not runs:
        raise ValueError("no figures of a device in this file: give one that python -m benchmarks.gpu wrote")
    return runs[-1]


def batches_in(records: Sequence[Record]) -> list[BatchFigures]:
    """Of the last run, every batch size by its last measurement, a sound one if there is one; rising."""
    run = last_run(records)
    work, rates = Work(**run["notes"]["work"]), rates_of(run)
    chosen: dict[int, Record] = {}
    for record in records:
        if record["kind"] == DEVICE and record["run"] == run["run"]:
            held = chosen.get(record["batch"])
            if held is None or held["void"] or not record["void"]:
                chosen[record["batch"]] = record
    return [_figures(chosen[batch], work, rates) for batch in sorted(chosen)]


def least_seconds(record: Record, work: Work, rates: Rates) -> float:
    """Of plain decoding of all texts of a record: one forward for the prompts of a group and one for each token."""
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
    best, assisted = _fastest(sides, OWN_DRAFTED), _fastest(sides, ASSISTED)
    assert best is not None  # as every course drafts
    own = sides[best]["seconds"]
    return BatchFigures(
        batch=record["batch"],
        void=record["void"],
        control=median(paired_ratios(plain, sides[CONTROL]["seconds"])),
        plain=tokens / median(plain),
        limit=tokens / least,
        share=estimate([least / seconds for seconds in plain]),
        forward_share=_forward_share(record, work, rates),
        best=best,
        drafted=tokens / median(own),
        tokens_per_step=tokens / sides[best]["steps"],
        over_plain=estimate(paired_ratios(plain, own)),
        assisted=assisted,
        over_assisted=None if assisted is None else estimate(paired_ratios(sides[assisted]["seconds"], own)),
        plain_over_peer=estimate(paired_ratios(peer, plain)),
        over_peer=estimate(paired_ratios(peer, own)),
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


def tables_of(figures: Sequence[BatchFigures]) -> list[Table]:
    """Plain decoding beside its limit, and drafted decoding beside the others."""
    plain = _table(
        "plain decoding and its limit", "batch", "tokens/s", "limit", "share", "forward alone", "over itself"
    )
    other = _table(
        "drafted decoding",
        "batch",
        "best",
        "tokens/s",
        "tokens/step",
        "over plain",
        "over assisted",
        f"over {PEER}",
        f"plain over {PEER}",
    )
    for line in figures:
        plain.add_row(
            str(line.batch),
            f"{line.plain:.1f}",
            f"{line.limit:.1f}",
            f"{line.share.value:.0%} ({line.share.low:.0%}-{line.share.high:.0%})",
            "-" if line.forward_share is None else f"{line.forward_share:.0%}",
            f"{line.control:.2f}" + (" void" if line.void else ""),
        )
        other.add_row(
            str(line.batch),
            line.best,
            f"{line.drafted:.1f}",
            f"{line.tokens_per_step:.2f}",
            _interval(line.over_plain),
            "-" if line.over_assisted is None else _interval(line.over_assisted),
            _interval(line.over_peer),
            _interval(line.plain_over_peer),
        )
    return [plain, other]


def verdicts_of(figures: Sequence[BatchFigures]) -> list[str]:
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


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _interval(found: Estimate) -> str:
    return f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f})"
