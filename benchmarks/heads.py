"""Which draft head pays on one target, and how far is the controller from the best draft length?

No prompt is of a text that the embedded models and heads are trained on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

from benchmarks.drafters import drafters_of
from benchmarks.even_decoding import CONTROL, PLAIN, flat, tokens_per_step
from benchmarks.head_cells import AUTO, BEST, Cell, cost, measure, place
from benchmarks.study import (
    Draft,
    Precision,
    ProcessorTime,
    Progress,
    Study,
    Suite,
    Target,
    Timing,
    check_counts,
    check_temperatures,
    conditions_of,
    counts,
    date,
    missing,
    named,
    option,
    pair_of,
    run_cells,
    sound,
)
from paceline.api import embedded_heads, load
from paceline.api.draft_heads import is_head
from paceline.bench.columns import Column, Section, grouped
from paceline.bench.raw import RawFile, Record, hash_model
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.core.stats import Summary
from paceline.kernels.cpu.instruction_set import current_set

MODEL = "model"
SPENT = "spent.json"  # demo/recipes/zoo.py
KILOBYTE, MEGABYTE = 10**3, 10**6


@dataclass(frozen=True, slots=True)
class Line:
    """A drafter in a cell, ``auto`` and with its best draft length."""

    drafter: str
    size: float  # of its weights as they are stored, in megabytes
    cache: float | None  # of a token, beside the target's, in kilobytes; None: not known
    minutes: float | None  # of one core, that its training took; None: not known
    temperature: float
    batch_size: int
    depth: int  # the best draft length
    tokens: Estimate  # tokens per step
    cost: float | None  # of drafting a token, in plain steps
    speedup: Estimate
    auto_tokens: Estimate
    auto_speedup: Estimate
    auto_decoding: Estimate | None  # the same without the time in which prompts are read; None: not known
    control: float  # plain decoding over itself
    num_looping: int  # prompts left out
    void: bool


def heads_in(folder: Path) -> dict[str, Path]:
    """The draft heads that runs below ``folder`` have written, by name. Raises ValueError for a folder without any."""
    found = {path.name: path for path in sorted(folder.glob("*/*")) if is_head(path)}
    if not found:
        raise ValueError(f"--heads {folder}: no FOLDER/HEAD of it is a draft head; train some first, by make zoo-train")
    return found


def training_seconds(head: Path | None) -> float | None:
    """Processor time that the recipe of the zoo wrote down beside a head; 0 without training, None where it is not."""
    if head is None:
        return 0.0
    spent = head.parent / SPENT
    return sum(json.loads(spent.read_text(encoding="utf-8"))) if spent.exists() else None


def line_of(record: Record) -> Line:
    """What is shown of a cell."""
    cell = record["cell"]
    seconds = {name: flat(parts) for name, parts in record["seconds"].items()}
    summaries = {name: [Summary(**one) for one in rows] for name, rows in record["summaries"].items()}

    def tokens(name: str) -> Estimate:
        return tokens_per_step(summaries[name])

    def decoding(name: str) -> list[float]:
        return [whole - part for whole, part in zip(seconds[name], flat(record["reading"][name]), strict=True)]

    return Line(
        drafter=cell["drafter"],
        size=record["bytes"] / MEGABYTE,
        cache=record["slot_bytes"] / KILOBYTE if "slot_bytes" in record else None,
        minutes=record["training"] / 60 if record.get("training") is not None else None,
        temperature=cell["temperature"],
        batch_size=cell["batch_size"],
        depth=record["depth"],
        tokens=tokens(BEST),
        cost=cost(record, BEST),
        speedup=pooled_ratio(seconds[PLAIN], seconds[BEST]),
        auto_tokens=tokens(AUTO),
        auto_speedup=pooled_ratio(seconds[PLAIN], seconds[AUTO]),
        auto_decoding=pooled_ratio(decoding(PLAIN), decoding(AUTO)) if "reading" in record else None,
        control=pooled_ratio(seconds[PLAIN], seconds[CONTROL]).value,
        num_looping=record["num_looping"],
        void=record["void"],
    )


COLUMNS: list[Column[Line]] = [
    Column("drafter", "drafter", left=True),
    Column("MB", "size", ".1f"),
    Column("kB", "cache", ".2f", rare=True),
    Column("training", "minutes", ".0f", rare=True),
    Column("best k", "depth"),
    Column("tokens per step", "tokens", ".2f"),
    Column("cost", "cost", ".3f", timed=True, rare=True),
    Column("over plain", "speedup", ".2f", timed=True, estimate=True),
    Column("auto: tokens", "auto_tokens", ".2f"),
    Column("auto: over plain", "auto_speedup", ".2f", timed=True, estimate=True),
    Column("auto: decoding", "auto_decoding", ".2f", timed=True, estimate=True, rare=True),
    Column("control", "control", ".3f"),
]


def _takes(line: Line) -> str:
    """A drafter, its weights and its training, as the drawing has them."""
    training = "" if not line.minutes else f", {line.minutes:.0f} min"
    return f"{line.drafter} ({line.size:.1f} MB{training})" if line.size else line.drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStudy(Study):
    """Which draft head pays on one target, and how far is the controller from the best draft length?"""

    kind: ClassVar[str] = "heads"
    title: ClassVar[str] = "Draft heads"

    target: Target = None  # the embedded one has heads too
    draft: Draft = None
    heads: Annotated[Path | None, option("Folder of training runs whose heads are measured.")] = None
    drafters: Annotated[tuple[str, ...], option("Drafters without training that are measured too, such as ngram.")] = ()
    suite: Suite = "code"
    temperatures: Annotated[tuple[float, ...], option("Greedy is 0.")] = (0.0, 1.0)
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1, 8)
    depths: Annotated[tuple[int, ...], counts("Draft lengths of which the best is taken.")] = tuple(range(1, 9))
    max_tokens: Annotated[int, option("New tokens of every row.")] = 96
    num_prompts: Annotated[int, option("Prompts that are measured; as many others choose the draft length.")] = 16
    together: Annotated[int, option("Prompts that an engine decodes before the next one is made; rows at least.")] = 4
    repeats: Annotated[int, option("Timed decodings.")] = 3
    dtype: Precision = "bfloat16"
    processor_time: ProcessorTime = False

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(batch=self.batch, depths=self.depths, max_tokens=self.max_tokens, num_prompts=self.num_prompts)
        check_counts(together=self.together)
        check_counts(least=2, repeats=self.repeats)
        pair_of(self.target, self.draft)
        for rows in self.batch:
            if self.num_prompts % self._together(rows):
                raise ValueError(
                    f"{self.num_prompts} prompts make no parts of {self._together(rows)} for batches of {rows}; give a "
                    "multiple of it"
                )
        check_temperatures(self.temperatures)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        paths = pair_of(self.target, self.draft)
        target, draft = (load(path, dtype=self.dtype, device="cpu") for path in paths)
        folders = {MODEL: paths[1], **self._heads()}
        untrained = drafters_of(self.drafters, draft)
        timing = Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time)
        choices = {
            "isa": current_set(),
            "suite": self.suite,
            "repeats": self.repeats,
            "num_prompts": self.num_prompts,
            "together": self.together,
            "depths": list(self.depths),
            "processor_time": self.processor_time,
        }
        run = raw.begin(conditions_of(named(paths), target.dtype, **choices), date)
        hashes = {name: hash_model(folder) for name, folder in folders.items()} | dict.fromkeys(untrained, "")
        cells = [
            Cell(
                drafter=name,
                hash=hashes[name],
                temperature=temperature,
                batch_size=rows,
                max_tokens=self.max_tokens,
            )
            for temperature, rows, name in product(self.temperatures, self.batch, (*folders, *untrained))
        ]
        for cell, identity in missing(raw, cells, run_cells(self.kind, run), say):
            folder = folders.get(cell.drafter)
            trained = draft if folder == paths[1] else str(folder)
            found = measure(
                cell,
                target=target,
                drafter=untrained[cell.drafter] if folder is None else trained,
                suite=self.suite,
                num_prompts=self.num_prompts,
                together=self._together(cell.batch_size),
                depths=self.depths,
                timing=timing,
            )
            size = 0 if folder is None else sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            raw.append({**identity, "bytes": size, "training": training_seconds(folder), **found})

    def _together(self, rows: int) -> int:
        """Whole batches of ``rows``."""
        return -(-self.together // rows) * rows

    def _heads(self) -> dict[str, Path]:
        embedded = {f"embedded {path.name}": path for path in embedded_heads()} if self.target is None else {}
        return {**embedded, **({} if self.heads is None else heads_in(self.heads))}

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Line]]:
        """A table for every temperature and batch size."""
        conditions = run["conditions"]
        return grouped(
            lambda place: f"{conditions['target']['name']}, {place}, {conditions['isa']}",
            COLUMNS,
            self._lines(run, records),
            lambda line: place(line.temperature, line.batch_size),
        )

    def last(self, run: Record, records: Sequence[Record]) -> list[Record]:
        """Of a head that was trained again, what was measured last."""
        found: dict[str, Record] = {}
        for record in Study.last(self, run, records):
            known = {**record["cell"], "hash": ""}
            found[json.dumps(known)] = record
        return list(found.values())

    def _lines(self, run: Record, records: Sequence[Record]) -> list[Line]:
        lines = [line_of(record) for record in self.last(run, records)]
        return sorted(lines, key=lambda line: (line.temperature, line.batch_size))

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        lines = self._lines(run, records)
        looping = sorted({line.num_looping for line in lines if line.temperature == 0})
        found = [
            "best k: the fixed draft length that is fastest on as many other prompts; tokens per step and speed are "
            "its own, then those under the controller, whose plain steps count; MB: of weights; kB: of the drafter's "
            "cache, a token; training: minutes of one core, where they are known; cost: of drafting a token, in plain "
            "steps",
            f"prompts whose plain output loops are left out: {', '.join(map(str, looping)) or 0} greedy ones",
            "[ ]: 95 % interval over prompts, of times over parts and repeats; void: plain decoding differs from "
            "itself by more than 3 %",
        ]
        if any(line.auto_decoding is not None for line in lines):
            found.insert(1, "decoding: over plain, without the time in which prompts are read; of batch 1")
        return found

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """The speed-up of every drafter, with its best draft length and under the controller."""
        from paceline.bench import drawing  # needs the optional matplotlib

        lines = [line for line in self._lines(run, records) if not line.void]
        places = list(dict.fromkeys((line.temperature, line.batch_size) for line in lines))

        def panels(axes: Sequence[Any]) -> None:
            for panel, which in zip(axes, places, strict=True):
                own = [line for line in lines if (line.temperature, line.batch_size) == which]
                own.sort(key=lambda line: -line.speedup.value)
                for label, values in (
                    ("best draft length", [line.speedup for line in own]),
                    ("controller", [line.auto_speedup for line in own]),
                ):
                    drawing.error_bars(panel, range(len(own)), values, label, linestyle="")
                drawing.baseline(panel)
                panel.set_xticks(range(len(own)), [_takes(line) for line in own], rotation=60, ha="right")
                drawing.finish(panel, x="", y="speed-up over plain decoding", title=place(*which), columns=2)

        measured = self.last(run, records)
        caption = "The fastest first: with the size of its weights, and the time of one core that training took."
        caption += drawing.left_out(len(measured) - len(sound(measured)), len(measured))
        return drawing.draw_panels(
            panels, size=(4.4 * len(places), 4.8), title=title, caption=caption, columns=len(places)
        )
