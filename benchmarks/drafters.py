"""Which drafter pays on which text, and what does it cost to take them all?

In a cell one suite is decoded at one batch size: plainly, twice, and with every drafter, all at once and each as far as
the others. Draft lengths are chosen as they are for users, so where a drafter does not pay, decoding goes on without.
No drafter remembers texts from one repeat to the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar

from benchmarks.decoders import longest
from benchmarks.even_decoding import CONTROL, PLAIN, decode_sides, flat, total
from benchmarks.study import (
    Draft,
    Precision,
    ProcessorTime,
    Progress,
    Study,
    Target,
    Timing,
    check_counts,
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
from paceline.api import Engine, Loaded, SamplingParams, load
from paceline.api.drafter_like import DrafterLike
from paceline.api.prompts import encode
from paceline.bench.columns import Column, Section, grouped
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.bench.suites import prompts_of
from paceline.core.stats import Summary
from paceline.kernels.cpu.instruction_set import current_set

TOGETHER = "all suites"
MIXTURES = ("auto", "auto + model")
COPYING = ("ngram", "suffix", "copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is decoded."""

    suite: str
    batch_size: int
    max_tokens: int

    @property
    def name(self) -> str:
        return f"{self.suite}, batch {self.batch_size}, {self.max_tokens} tokens"


@dataclass(frozen=True, slots=True)
class Line:
    """A drafter in a cell, or in all of a batch size."""

    suite: str
    batch_size: int
    drafter: str
    speedup: Estimate
    of_best: Estimate | None  # its speed over that of the best single drafter; of mixtures
    summary: Summary
    drafting: float  # share of the steps' time
    control: float  # plain decoding over itself
    void: bool


def drafters_of(names: Sequence[str], draft: Loaded | None) -> dict[str, DrafterLike]:
    """What each name stands for. Raises ValueError for others, and for those that need a draft model without one."""
    known: dict[str, DrafterLike] = {name: name for name in (*COPYING, "lookahead", "auto")}
    known["layer_skip"] = "layer_skip:on_the_fly=true"
    if draft is not None:
        known |= {
            "model": draft,
            "model < ngram": f"model:{draft.name} < ngram",
            "model x2 + ngram": f"model:{draft.name} x2 + ngram",
            "slem": f"model:draft={draft.name},vocabulary=slem",
            "auto + model": ["auto", draft],
        }
    unknown = set(names) - known.keys()
    if unknown:
        instead = "" if draft is not None else ", without --draft"
        raise ValueError(f"--drafters {', '.join(sorted(unknown))}: known are {', '.join(known)}{instead}")
    return {name: known[name] for name in names}


def measure(
    cells: Sequence[Cell],
    *,
    targets: Mapping[str, Loaded],
    drafters: Mapping[str, DrafterLike],
    num_prompts: int,
    timing: Timing,
    raw: RawFile,
    run: str,
    say: Progress,
) -> None:
    """Put into ``raw`` what it lacks of ``cells``; ``targets`` are those of every side."""
    for cell, identity in missing(raw, cells, run_cells("drafters", run), say):
        prompts = [
            encode(targets[PLAIN], text) for text in prompts_of(cell.suite, max(num_prompts, cell.batch_size), seed=0)
        ]
        length = longest(prompts) + cell.max_tokens
        made: dict[str, DrafterLike] = {PLAIN: None, **drafters, CONTROL: None}
        sides = decode_sides(
            {name: partial(_engine, cell, targets[name], drafter, length) for name, drafter in made.items()},
            prompts,
            [SamplingParams(max_tokens=cell.max_tokens, temperature=0.0, ignore_eos=True)] * len(prompts),
            what=cell.name,
            batch_size=cell.batch_size,
            timing=timing,
        )
        counted = {name: asdict(total(one.summary for one in repeats[-1])) for name, repeats in sides.decoded.items()}
        shares = {
            name: median(one.drafting for parts in repeats for one in parts) for name, repeats in sides.decoded.items()
        }
        raw.append({**identity, "void": sides.void, "seconds": sides.seconds, "summaries": counted, "drafting": shares})


def _engine(cell: Cell, target: Loaded, drafter: DrafterLike, max_length: int) -> Engine:
    return Engine(target, drafter=drafter, batch_size=cell.batch_size, max_length=max_length)


def lines_of(cells: Sequence[Record], suite: str) -> list[Line]:
    """A line for each drafter over ``cells`` of one batch size, called ``suite``."""
    names = [name for name in cells[0]["seconds"] if name not in (PLAIN, CONTROL)]
    sides = (PLAIN, *names, CONTROL)
    seconds = {name: [one for cell in cells for one in flat(cell["seconds"][name])] for name in sides}
    single = [name for name in names if name not in MIXTURES]
    found: list[Line] = []
    for name in names:
        best = min(single, key=lambda one: sum(seconds[one])) if name in MIXTURES and single else None
        summary = total(Summary(**cell["summaries"][name]) for cell in cells)
        found.append(
            Line(
                suite=suite,
                batch_size=cells[0]["cell"]["batch_size"],
                drafter=name,
                speedup=pooled_ratio(seconds[PLAIN], seconds[name]),
                of_best=None if best is None else pooled_ratio(seconds[best], seconds[name]),
                summary=summary,
                drafting=median(cell["drafting"][name] for cell in cells),
                control=pooled_ratio(seconds[PLAIN], seconds[CONTROL]).value,
                void=any(cell["void"] for cell in cells),
            )
        )
    return found


COLUMNS: list[Column[Line]] = [
    Column("suite", "suite", left=True),
    Column("batch", "batch_size"),
    Column("drafter", "drafter", left=True),
    Column("tokens per step", lambda line: line.summary.mean_acceptance_length, ".2f"),
    Column("accepted", lambda line: line.summary.acceptance_rate, ".0%"),
    Column("drafting", "drafting", ".1%"),
    Column("over plain", "speedup", ".2f"),
    Column("over the best single", "of_best", ".3f"),
    Column("control", "control", ".3f"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterStudy(Study):
    """Which drafter pays on which text, and what does it cost to take them all?"""

    kind: ClassVar[str] = "drafters"
    title: ClassVar[str] = "All drafters, suite by suite"

    target: Target = None
    draft: Draft = None
    drafters: Annotated[tuple[str, ...], option("Of those that the table of the report names.")] = (
        *COPYING,
        "lookahead",
        "layer_skip",
        "model",
        "model < ngram",
        "model x2 + ngram",
        "slem",
        *MIXTURES,
    )
    suites: Annotated[tuple[str, ...], option("Prompts.")] = ("code", "prose", "chat")
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1,)
    max_tokens: Annotated[int, option("New tokens of every row.")] = 96
    num_prompts: Annotated[int, option("Prompts of a suite; as many as rows at least.")] = 4
    repeats: Annotated[int, option("Timed decodings of every drafter.")] = 3
    dtype: Precision = "bfloat16"
    processor_time: ProcessorTime = False

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(batch=self.batch, max_tokens=self.max_tokens, num_prompts=self.num_prompts)
        check_counts(least=2, repeats=self.repeats)
        self._paths()
        for rows in self.batch:
            if max(rows, self.num_prompts) % rows:
                raise ValueError(f"{self.num_prompts} prompts make no batches of {rows}; give a multiple of it")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        paths = self._paths()
        models = {use: load(path, dtype=self.dtype, device="cpu") for use, path in paths.items()}
        target, drafters = models["target"], drafters_of(self.drafters, models.get("draft"))
        targets = dict.fromkeys((PLAIN, *drafters, CONTROL), target)
        if target.lm.context_inputs:  # an encoder reads equal inputs once: each side has one of its own
            targets = {name: load(paths["target"], dtype=self.dtype, device="cpu") for name in targets}
        timing = Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time)
        choices = {
            "isa": current_set(),
            "repeats": self.repeats,
            "num_prompts": self.num_prompts,
            "drafters": list(drafters),
            "processor_time": self.processor_time,
        }
        run = raw.begin(conditions_of(paths, target.dtype, **choices), date)
        cells = [
            Cell(suite=suite, batch_size=rows, max_tokens=self.max_tokens)
            for rows, suite in product(self.batch, self.suites)
        ]
        measure(
            cells,
            targets=targets,
            drafters=drafters,
            num_prompts=self.num_prompts,
            timing=timing,
            raw=raw,
            run=run,
            say=say,
        )

    def _paths(self) -> dict[str, Path]:
        """Directories by what they are for; a target may come without a draft, where no drafter needs one."""
        if self.target is not None and self.draft is None:
            drafters_of(self.drafters, None)
            return {"target": self.target}
        return named(pair_of(self.target, self.draft))

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Line]]:
        """A table for every batch size: each suite, then all of them together."""
        conditions = run["conditions"]
        return grouped(
            lambda rows: f"{conditions['target']['name']}, batch {rows}, {conditions['isa']}",
            COLUMNS,
            self._lines(run, records),
            lambda line: line.batch_size,
        )

    def _lines(self, run: Record, records: Sequence[Record]) -> list[Line]:
        found: list[Line] = []
        measured = self.last(run, records)
        for rows in dict.fromkeys(cell["cell"]["batch_size"] for cell in measured):
            own = [cell for cell in measured if cell["cell"]["batch_size"] == rows]
            for cell in own:
                found += lines_of([cell], cell["cell"]["suite"])
            whole = sound(own)
            if len(whole) > 1:
                found += lines_of(whole, TOGETHER)
        return found

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return [
            "tokens per step and accepted: of the last repeat, plain steps included; draft lengths are those of auto",
            "drafting: planning and drafting, share of the steps' time",
            "over the best single: of those above that draft alone, by hindsight; all suites: void cells left out",
            "[ ]: 95 % interval over prompts and repeats; void: plain decoding differs from itself by more than 3 %",
        ]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """The speed-up of every drafter, suite by suite."""
        from paceline.bench import drawing  # needs the optional matplotlib

        lines = [line for line in self._lines(run, records) if not line.void]
        places = list(dict.fromkeys((line.suite, line.batch_size) for line in lines))
        names = list(dict.fromkeys(line.drafter for line in lines))

        def panels(axes: Sequence[Any]) -> None:
            for place, (suite, rows) in zip(axes, places, strict=True):
                own = {line.drafter: line.speedup for line in lines if (line.suite, line.batch_size) == (suite, rows)}
                drawing.error_bars(place, range(len(own)), list(own.values()), "speed-up", linestyle="")
                drawing.baseline(place)
                place.set_xticks(range(len(own)), list(own), rotation=60, ha="right")
                drawing.finish(place, x="", y="speed-up over plain decoding", title=f"{suite}, batch {rows}", columns=1)

        measured = self.last(run, records)
        caption = f"Speed-up of {len(names)} drafters, each with the draft lengths that the controller chooses."
        caption += drawing.left_out(len(measured) - len(sound(measured)), len(measured))
        return drawing.draw_panels(
            panels, size=(4.4 * len(places), 4.6), title=title, caption=caption, columns=len(places)
        )
