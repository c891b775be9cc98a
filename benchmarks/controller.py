"""What does a user lose who leaves the draft length to the controller?

In a cell one batch size, one temperature and one suite of prompts are decoded plainly, twice, with fixed draft lengths,
and with num_draft_tokens="auto", all at once and each as far as the others. The controller is compared with plain
decoding, and with the fixed length that was fastest in the other repeats.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar

import torch

from benchmarks.even_decoding import CONTROL, PLAIN, decode_sides, flat
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
from paceline.api.draft_length import NumDraftTokens
from paceline.api.drafter_like import DrafterLike
from paceline.api.prompts import encode
from paceline.bench.columns import Column, Section, grouped
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.bench.suites import prompts_of
from paceline.core.plan import Fixed
from paceline.kernels.cpu.instruction_set import current_set

AUTO = "auto"
LONGEST_PROMPT = 512
SIZE = (4.8, 4.2)  # inches of a panel
USELESS = "useless"  # a draft model of random weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is decoded."""

    drafter: str
    suite: str
    temperature: float
    batch_size: int
    max_tokens: int

    @property
    def name(self) -> str:
        return (
            f"{self.drafter}, {self.suite}, T={self.temperature:g}, batch {self.batch_size}, {self.max_tokens} tokens"
        )


def useless_draft(draft: Loaded) -> Loaded:
    """``draft`` with random weights: it costs as much and says nothing."""
    assert isinstance(draft.lm, torch.nn.Module)
    generator = torch.Generator().manual_seed(0)
    model = copy.deepcopy(draft)
    assert isinstance(model.lm, torch.nn.Module)
    with torch.no_grad():
        for weight in model.lm.parameters():
            weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))
    return model


def measure_cells(
    cells: Sequence[Cell],
    *,
    target: Loaded,
    drafters: dict[str, DrafterLike],
    depths: Sequence[int],
    num_parts: int,
    timing: Timing,
    raw: RawFile,
    run: str,
    say: Progress,
) -> None:
    """Put into ``raw`` what it lacks of ``cells``; each decodes at least ``num_parts`` batches."""
    for cell, identity in missing(raw, cells, run_cells("controller", run), say):
        lengths: dict[str, NumDraftTokens] = {
            PLAIN: Fixed(0),
            **{f"k={depth}": Fixed(depth) for depth in depths},
            AUTO: AUTO,
            CONTROL: Fixed(0),
        }
        num_prompts = max(cell.batch_size, num_parts if cell.batch_size == 1 else cell.batch_size)
        prompts = [encode(target, text) for text in prompts_of(cell.suite, num_prompts, seed=0)]
        sides = decode_sides(
            {name: partial(_engine, cell, target, drafters[cell.drafter], one) for name, one in lengths.items()},
            prompts,
            [_params(cell, seed) for seed in range(num_prompts)],
            what=cell.name,
            batch_size=cell.batch_size,
            timing=timing,
        )
        steps = {name: repeats[-1][-1].summary.steps for name, repeats in sides.decoded.items()}
        raw.append({**identity, "void": sides.void, "seconds": sides.seconds, "steps": steps})


def _engine(cell: Cell, target: Loaded, drafter: DrafterLike, length: NumDraftTokens) -> Engine:
    plain = isinstance(length, Fixed) and length.max_draft_tokens == 0
    return Engine(
        replace(target, tokenizer=None),
        drafter=None if plain else drafter,
        num_draft_tokens=length,
        batch_size=cell.batch_size,
        max_length=LONGEST_PROMPT + cell.max_tokens,
    )


def _params(cell: Cell, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=cell.max_tokens, temperature=cell.temperature, seed=seed, ignore_eos=True)


def pooled(taken: dict[str, list[list[float]]], base: str, own: str) -> Estimate:
    """Time of ``base`` over that of ``own``."""
    return pooled_ratio(flat(taken[base]), flat(taken[own]))


def fixed(taken: dict[str, list[list[float]]]) -> list[str]:
    """The settings that a user could have fixed; plain decoding is one."""
    return [name for name in taken if name not in (AUTO, CONTROL)]


def hindsight(taken: dict[str, list[list[float]]]) -> tuple[list[float], list[str]]:
    """Seconds of every part by the setting that was fastest in the other repeats, and which it was."""
    seconds: list[float] = []
    chosen: list[str] = []
    for repeat in range(len(taken[PLAIN])):
        others = {
            name: sum(sum(parts) for at, parts in enumerate(taken[name]) if at != repeat) for name in fixed(taken)
        }
        best = min(others, key=lambda name: others[name])
        seconds += taken[best][repeat]
        chosen.append(best)
    return seconds, chosen


def against_plain(record: Record) -> Estimate:
    """Speed-up of the controller."""
    return pooled(record["seconds"], PLAIN, AUTO)


def against_best(record: Record) -> Estimate:
    """Speed of the controller over that of the best fixed setting in hindsight."""
    return pooled_ratio(hindsight(record["seconds"])[0], flat(record["seconds"][AUTO]))


def best_fixed(record: Record) -> str:
    """The setting that was most often best."""
    chosen = hindsight(record["seconds"])[1]
    return max(set(chosen), key=chosen.count)


def speedup_of_best(record: Record) -> float:
    """Of the best fixed setting in hindsight."""
    return pooled_ratio(flat(record["seconds"][PLAIN]), hindsight(record["seconds"])[0]).value


def deepest(record: Record) -> Estimate | None:
    """Speed-up of the deepest fixed setting: what a bad guess costs."""
    names = fixed(record["seconds"])
    return pooled(record["seconds"], PLAIN, names[-1]) if len(names) > 1 else None


COLUMNS: list[Column[Record]] = [
    Column("suite", "cell.suite", left=True),
    Column("T", "cell.temperature", "g"),
    Column("batch", "cell.batch_size"),
    Column("tokens", "cell.max_tokens"),
    Column("best fixed", best_fixed, left=True),
    Column("over plain", speedup_of_best, ".2f"),
    Column("deepest over plain", deepest, ".2f"),
    Column("auto over plain", against_plain, ".3f"),
    Column("auto over best fixed", against_best, ".3f"),
    Column("control", lambda line: f"{pooled(line['seconds'], PLAIN, CONTROL).value:.3f}{' (void)' * line['void']}"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStudy(Study):
    """What does a user lose who leaves the draft length to the controller?"""

    kind: ClassVar[str] = "controller"
    title: ClassVar[str] = "The controller beside fixed draft lengths"

    target: Target = None
    draft: Draft = None
    drafters: Annotated[tuple[str, ...], option("model, ngram, or useless: a draft model of random weights.")] = (
        "model",
    )
    suites: Annotated[tuple[str, ...], option("Prompts.")] = ("copy", "code", "prose", "chat")
    temperatures: Annotated[tuple[float, ...], option("Temperatures.")] = (0.0, 0.8)
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1, 4, 8, 16)
    max_tokens: Annotated[tuple[int, ...], counts("New tokens of every row.")] = (96,)
    num_draft_tokens: Annotated[tuple[int, ...], counts("Fixed draft lengths.", name="--k")] = (1, 2, 3, 5, 8)
    num_parts: Annotated[int, option("Prompts of batch size 1.")] = 4
    repeats: Annotated[int, option("Timed decodings of every setting.")] = 5
    dtype: Precision = "bfloat16"
    processor_time: ProcessorTime = False

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(batch=self.batch, max_tokens=self.max_tokens, num_parts=self.num_parts)
        check_counts(least=2, repeats=self.repeats)
        check_counts(k=self.num_draft_tokens)
        pair_of(self.target, self.draft)
        unknown = set(self.drafters) - {"model", "ngram", USELESS}
        if unknown:
            raise ValueError(f"--drafters {', '.join(sorted(unknown))}: known are model, ngram and {USELESS}")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        paths = pair_of(self.target, self.draft)
        target, draft = (load(path, dtype=self.dtype, device="cpu") for path in paths)
        makers: dict[str, Callable[[], DrafterLike]] = {
            "model": lambda: draft,
            "ngram": lambda: "ngram",
            USELESS: lambda: useless_draft(draft),
        }
        timing = Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time)
        choices = {"isa": current_set(), "repeats": self.repeats, "processor_time": self.processor_time}
        run = raw.begin(conditions_of(named(paths), target.dtype, **choices), date)
        cells = [
            Cell(drafter=drafter, suite=suite, temperature=temperature, batch_size=rows, max_tokens=tokens)
            for drafter, suite, temperature, rows, tokens in product(
                self.drafters, self.suites, self.temperatures, self.batch, self.max_tokens
            )
        ]
        measure_cells(
            cells,
            target=target,
            drafters={name: makers[name]() for name in self.drafters},
            depths=self.num_draft_tokens,
            num_parts=self.num_parts,
            timing=timing,
            raw=raw,
            run=run,
            say=say,
        )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """A table for every drafter."""
        isa = run["conditions"]["isa"]
        return grouped(lambda drafter: f"{drafter}, {isa}", COLUMNS, self.last(run, records), _drafter)

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are, and all cells together."""
        lines = sound(self.last(run, records))
        found: list[str] = []
        for drafter in dict.fromkeys(map(_drafter, lines)):
            own = [line for line in lines if _drafter(line) == drafter]
            plain, best = over_all(own)
            found.append(f"{drafter}, {len(own)} cells together: {plain:.3f} of plain, {best:.3f} of the best fixed")
        return [
            *found,
            "best fixed: for each repeat the setting that was fastest in the others; over 1 the controller was faster",
            "[ ]: 95 % interval over batches and repeats; control: plain decoding against itself, void beyond 3 %",
        ]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """For each drafter, the speed-up of the controller and of the best fixed setting, cell by cell."""
        from paceline.bench import drawing  # needs the optional matplotlib

        measured = self.last(run, records)
        lines = sound(measured)
        drafters = list(dict.fromkeys(map(_drafter, lines)))

        def panels(axes: Sequence[Any]) -> None:
            for place, drafter in zip(axes, drafters, strict=True):
                own = sorted((line for line in lines if _drafter(line) == drafter), key=speedup_of_best)
                drawing.error_bars(place, range(len(own)), list(map(against_plain, own)), "auto", linestyle="")
                place.plot(range(len(own)), list(map(speedup_of_best, own)), "k_", label="best fixed in hindsight")
                worst = [value.value if (value := deepest(line)) is not None else 1.0 for line in own]
                place.plot(range(len(own)), worst, "x", color="0.6", label="deepest fixed")
                drawing.baseline(place)
                place.set_xticks(range(0, len(own), 1 + len(own) // 9))
                drawing.finish(
                    place,
                    x="cells, by the best fixed length",
                    y="speed-up over plain decoding",
                    title=drafter,
                    columns=1,
                )

        caption = " ".join(
            f"{drafter}: over all cells the controller (auto) has {best:.2f} times the speed of the fixed length that "
            f"was best in each, and {plain:.2f} times that of plain decoding."
            for drafter in drafters
            for plain, best in [over_all([line for line in lines if _drafter(line) == drafter])]
        )
        caption += drawing.left_out(len(measured) - len(lines), len(measured))
        width = len(drafters)
        return drawing.draw_panels(panels, size=(SIZE[0] * width, SIZE[1]), title=title, caption=caption, columns=width)


def over_all(lines: Sequence[Record]) -> tuple[Estimate, Estimate]:
    """The controller's speed over that of plain decoding, and of the best fixed setting, in all these cells."""
    auto = [one for line in lines for one in flat(line["seconds"][AUTO])]
    plain = [one for line in lines for one in flat(line["seconds"][PLAIN])]
    return pooled_ratio(plain, auto), pooled_ratio(
        [one for line in lines for one in hindsight(line["seconds"])[0]], auto
    )


def _drafter(record: Record) -> str:
    return asdict(Cell(**record["cell"]))["drafter"]
