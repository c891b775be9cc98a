"""Text-to-semantic models with an early exit: right outputs, acceptance, and time beside plain decoding, in turn."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Annotated, ClassVar

from benchmarks.even_decoding import CONTROL, PLAIN, decode_sides, flat, total
from benchmarks.semantic_data import END, SYMBOLS, Pair, pairs, runs
from benchmarks.study import (
    Precision,
    ProcessorTime,
    Progress,
    Study,
    Timing,
    check_counts,
    conditions_of,
    counts,
    date,
    missing,
    option,
    run_cells,
)
from paceline.api import Engine, Loaded, SamplingParams, load
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.core.stats import Summary
from paceline.kernels.cpu.instruction_set import current_set

SEED = 9  # of the measured pairs, which training never draws
DRAFTED = "drafted"


@dataclass(frozen=True, slots=True)
class Cell:
    """What is decoded."""

    batch: int
    guidance: float
    k: int

    @property
    def name(self) -> str:
        return f"batch {self.batch}, guidance {self.guidance:g}, {self.k} drafted tokens"


def alike(outputs: Sequence[Sequence[int]], asked: Sequence[Pair]) -> float:
    """How alike outputs are to the runs of their texts said as they are, from 0 to 1 (difflib)."""
    table, found = runs(), list[float]()
    for output, pair in zip(outputs, asked, strict=True):
        wanted = [said for symbol in pair.source for said in table[symbol]]
        own = [token for token in output if token != END]
        found.append(SequenceMatcher(None, wanted, own, autojunk=False).ratio())
    return sum(found) / len(found)


def _ratio(record: Record, other: str) -> Estimate:
    return pooled_ratio(record["seconds"][PLAIN], record["seconds"][other])


COLUMNS: list[Column[Record]] = [
    Column("batch", "cell.batch"),
    Column("guidance", "cell.guidance", "g"),
    Column("k", "cell.k"),
    Column("accepted", lambda record: Summary(**record["summary"]).acceptance_rate, ".0%"),
    Column("tokens per step", lambda record: Summary(**record["summary"]).mean_acceptance_length, ".2f"),
    Column("outputs and runs alike", "alike", ".3f"),
    Column("over plain", lambda record: "void" if record["void"] else format(_ratio(record, DRAFTED), ".2f")),
    Column("control", lambda record: _ratio(record, CONTROL).value, ".3f"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantic(Study):
    """What does an early exit gain in a text-to-semantic model?"""

    kind: ClassVar[str] = "semantic"
    title: ClassVar[str] = "Text to semantic tokens"

    model: Annotated[Path, option("Directory of the target.")] = Path("runs/semantic/target")
    head: Annotated[str, option("Its early exit: a directory, or early_exit:exit_layer=2.")] = (
        "runs/semantic/early_exit"
    )
    batch: Annotated[tuple[int, ...], counts("Rows.")] = (1, 4)
    k: Annotated[tuple[int, ...], counts("Draft tokens.")] = (2, 4)
    guidance: Annotated[tuple[float, ...], option("Scales; 1 is off.")] = (1.0, 2.0)
    num_texts: Annotated[int, option("Texts.")] = 8
    repeats: Annotated[int, option("Of every call.")] = 5
    temperature: Annotated[float, option("0: greedy.")] = 0.0
    dtype: Precision = "float32"
    processor_time: ProcessorTime = False

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(batch=self.batch, k=self.k, num_texts=self.num_texts)
        check_counts(least=2, repeats=self.repeats)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        target = load(self.model, dtype=self.dtype)
        names = ("head", "num_texts", "repeats", "temperature", "processor_time")
        choices = {name: getattr(self, name) for name in names}
        run = raw.begin(conditions_of({"target": self.model}, target.dtype, isa=current_set(), **choices), date)
        asked = list(islice(pairs(SEED), self.num_texts))
        cells = [Cell(*values) for values in product(self.batch, self.guidance, self.k)]
        for cell, identity in missing(raw, cells, run_cells(self.kind, run), say):
            raw.append({**identity, **self._measured(cell, target, asked)})

    def _measured(self, cell: Cell, target: Loaded, asked: Sequence[Pair]) -> Record:
        """``asked`` texts, drafted and twice plain in turns of some tokens."""
        room = max(map(len, (pair.output for pair in asked))) + 32
        options = SamplingParams(max_tokens=room, guidance_scale=cell.guidance, temperature=self.temperature, seed=SEED)

        def engine(drafter: str | None) -> Engine:
            return Engine(
                target,
                drafter=drafter,
                num_draft_tokens=cell.k,
                batch_size=cell.batch,
                max_length=room + 1,
                guidance=cell.guidance != 1,
            )

        sides = decode_sides(
            {PLAIN: partial(engine, None), DRAFTED: partial(engine, self.head), CONTROL: partial(engine, None)},
            [pair.source for pair in asked],
            [options] * len(asked),
            what=cell.name,
            batch_size=cell.batch,
            timing=Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time),
        )
        last = sides.decoded[DRAFTED][-1]
        return {
            "void": sides.void,
            "seconds": {name: flat(parts) for name, parts in sides.seconds.items()},
            "summary": asdict(total(part.summary for part in last)),
            "alike": alike([tokens for part in last for tokens in part.tokens], asked),
        }

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """A line for every batch size, guidance and draft length."""
        title = f"early exit beside plain decoding, {run['conditions']['isa']}"
        return [Section(title=title, columns=COLUMNS, lines=self.last(run, records))]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        conditions = run["conditions"]
        return [
            f"{conditions['num_texts']} texts of {SYMBOLS[0]} to {SYMBOLS[1]} symbols, {conditions['repeats']} "
            "repeats; drafted outputs are the plain ones",
            "over plain: plain seconds over drafted ones [95 % interval over parts and repeats]; void: plain decoding "
            "differs from itself by more than 3 %",
        ]
