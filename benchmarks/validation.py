"""Does the validation of a training run predict what its heads gain in serving?

Each head's tokens per step at the validation whose weights were written, on prefixes of held-out rows, beside those of
the engine on the prompts of a suite, with drafts of the same length; and how they grew while it was trained.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from benchmarks.even_decoding import tokens_per_step
from benchmarks.head_cells import sampling_of
from benchmarks.study import Progress, Study, Suite, check_counts, conditions_of, date, missing, option, run_cells
from paceline.api import SamplingParams, generate, load
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record, hash_model
from paceline.bench.statistics import LEVEL, RESAMPLES, Estimate, pooled_ratio
from paceline.bench.suites import prompts_of
from paceline.core.stats import Summary
from paceline.kernels.cpu.instruction_set import current_set
from paceline.text.loops import is_looping
from paceline.train.history import HELD_OUT_LOSS, LENGTH, VALIDATION, History, Line, read_history
from paceline.train.outcome import target_directory

GREEDY = "greedy"


@dataclass(frozen=True, slots=True)
class Cell:
    """A head of a run, at a temperature."""

    run: str
    head: str
    hash: str  # of its files
    temperature: float

    @property
    def name(self) -> str:
        return f"{self.run}, {self.head}, temperature {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class Point:
    """What a head was said to gain, and what it gains."""

    run: str
    head: str
    temperature: float
    depth: int  # drafted tokens
    validated: Estimate
    served: Estimate

    @property
    def miss(self) -> float:
        """By how much serving differs from validation, as a share of the latter."""
        return self.served.value / self.validated.value - 1


COLUMNS: list[Column[Point]] = [
    Column("run", "run", left=True),
    Column("head", "head", left=True),
    Column("temperature", "temperature", "g"),
    Column("k", "depth"),
    Column("validated", "validated", ".2f"),
    Column("served", "served", ".2f"),
    Column("miss", "miss", "+.1%"),
]


def sampled(temperature: float) -> str:
    """How a log names a validation's sampling."""
    return GREEDY if temperature == 0 else f"t{temperature:g}"


def written(history: History) -> Line:
    """The validation whose weights a run wrote: of the least held-out loss, or of the most greedy tokens per step."""
    if history.config.target.is_trained:
        lines = [line for line in history.validations if line.get(HELD_OUT_LOSS) is not None]
        return min(lines, key=lambda line: line[HELD_OUT_LOSS] or 0.0)
    names = [f"{VALIDATION}{head.directory}.{GREEDY}.{LENGTH}" for head in history.config.heads]
    lines = [line for line in history.validations if all(line.get(name) is not None for name in names)]
    return max(lines, key=lambda line: sum(line[name] or 0.0 for name in names), default=history.validations[-1])


def runs_below(folders: Sequence[Path]) -> dict[str, History]:
    """The finished runs in ``folders`` that have heads, by name. Raises ValueError for a folder without any."""
    found: dict[str, History] = {}
    for folder in folders:
        names = sorted(path.parent for path in folder.glob("*/config.yaml"))
        own = [read_history(path) for path in names if (path / "log.jsonl").exists()]
        own = [history for history in own if history.config.heads and history.finished]
        if not own:
            raise ValueError(f"{folder}: no RUN of it is a finished training run with heads; train some first")
        found |= {history.folder.name: history for history in own}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationStudy(Study):
    """Does the validation of a training run predict what its heads gain in serving?"""

    kind: ClassVar[str] = "validation"
    title: ClassVar[str] = "Validation and serving"
    needs: ClassVar[tuple[str, ...]] = ("matplotlib", "scipy")

    runs: Annotated[tuple[Path, ...], option("Folders of training runs whose heads are served.")] = (
        Path("build/experiments"),
    )
    suite: Suite = "code"
    num_prompts: Annotated[int, option("Prompts that every head continues.")] = 48
    max_tokens: Annotated[int, option("New tokens of each.")] = 64

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(num_prompts=self.num_prompts, max_tokens=self.max_tokens)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        histories = runs_below(self.runs)
        choices = {"suite": self.suite, "num_prompts": self.num_prompts, "max_tokens": self.max_tokens}
        run = raw.begin(conditions_of({}, "as trained", isa=current_set(), **choices), date)
        cells = [
            Cell(name, head.directory, hash_model(history.folder / head.directory), temperature)
            for name, history in histories.items()
            for head, temperature in product(history.config.heads, (0.0, history.config.validation.temperature))
        ]
        for cell, identity in missing(raw, cells, run_cells(self.kind, run), say):
            history = histories[cell.run]
            start, line = f"{VALIDATION}{cell.head}.{sampled(cell.temperature)}.", written(history)
            validated = [line.get(f"{start}{name}") for name in (LENGTH, "low", "high")]
            steps, lengths = history.curve(f"{start}{LENGTH}")
            raw.append(
                {
                    **identity,
                    "void": False,
                    "depth": history.config.validation.k,
                    "tokens_per_training_step": history.config.batch.rows * history.config.batch.length,
                    "curve": {"steps": steps, "validated": lengths},
                    "validated": validated,
                    "served": self._served(history, cell),
                }
            )

    def _served(self, history: History, cell: Cell) -> list[dict[str, Any]]:
        """Summaries of the outputs that do not loop."""
        config = history.config
        dtype = "float32" if config.target.is_trained else config.target.dtype
        params = [
            SamplingParams(max_tokens=self.max_tokens, temperature=cell.temperature, seed=seed, ignore_eos=True)
            for seed in range(self.num_prompts)
        ]
        results = generate(
            load(target_directory(config), dtype=dtype, device="cpu"),
            prompts_of(self.suite, self.num_prompts, seed=1),
            params,
            drafter=str(history.folder / cell.head),
            num_draft_tokens=config.validation.k,
            batch_size=8,
        )
        return [asdict(one.stats.summary) for one in results if not is_looping(one.token_ids)]

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Point]]:
        """A line for every head."""
        points = points_of(self.last(run, records))
        return [Section(title=f"tokens per step, {run['conditions']['isa']}", columns=COLUMNS, lines=points)]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """Correlations, and the largest miss."""
        points = points_of(self.last(run, records))
        lines = []
        for temperature in sorted({point.temperature for point in points}):
            own = [point for point in points if point.temperature == temperature]
            if len(own) > 2:
                worst = max(own, key=lambda point: abs(point.miss))
                ratio = pooled_ratio([one.served.value for one in own], [one.validated.value for one in own])
                linear, by_rank = correlation(own), correlation(own, ranks=True)
                alike = "no correlation, as all heads are alike"
                lines.append(
                    f"{sampled(temperature)}, {len(own)} heads: "
                    + (f"correlation {linear:.2f}, of ranks {by_rank:.2f}" if linear and by_rank else alike)
                    + f"; served over validated {ratio:.3f}; largest miss {worst.miss:+.1%}, "
                    f"{worst.head} of {worst.run}"
                )
        return [
            *lines,
            "[ ]: 95 % interval over outputs, of all heads over heads; heads whose outputs all loop are left out",
        ]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """Served over validated tokens per step; below them, where records say so, how training raised the latter."""
        from paceline.bench import drawing  # needs the optional matplotlib

        points = points_of(self.last(run, records))
        trained = [record for record in self.last(run, records) if record.get("curve", {}).get("steps")]
        temperatures = sorted({point.temperature for point in points})
        kinds = list(dict.fromkeys(kind_of(record["cell"]["run"]) for record in self.last(run, records)))

        def panels(axes: Sequence[Any]) -> None:
            above, below = axes[: len(temperatures)], axes[len(temperatures) :]
            for panel, temperature in zip(above, temperatures, strict=True):
                own = [point for point in points if point.temperature == temperature]
                for at, kind in enumerate(kinds):
                    some = [point for point in own if kind_of(point.run) == kind]
                    if not some:
                        continue
                    style = {**drawing.series(at), "linestyle": "", "linewidth": 0.8}
                    x = [point.validated.value for point in some]
                    drawing.error_bars(panel, x, [point.served for point in some], kind, **style)
                ends = [min(point.validated.value for point in own), max(point.validated.value for point in own)]
                panel.plot(ends, ends, color="black", linewidth=0.8, marker="")
                drawing.finish(
                    panel,
                    x="tokens per step at validation",
                    y="tokens per step in serving",
                    title=sampling_of(temperature),
                    columns=2,
                )
            for panel, temperature in zip(below, temperatures if trained else (), strict=True):
                for record in trained:
                    curve, cell = record["curve"], record["cell"]
                    if cell["temperature"] == temperature:
                        style = drawing.series(kinds.index(kind_of(cell["run"])))
                        panel.plot(curve["steps"], curve["validated"], **style)
                drawing.finish(panel, x="training steps", y="tokens per step at validation")

        rows = 2 if trained else 1
        return drawing.draw_panels(
            panels,
            size=(4.6 * len(temperatures), 5.0 * rows),
            title=title,
            caption="Each point is a head; on the line, serving gives what validation said."
            + (" Below: while the heads were trained." if trained else ""),
            rows=rows,
            columns=len(temperatures),
        )


def kind_of(run: str) -> str:
    """What a run's name says before the number of its seed."""
    return run.rsplit("-", 1)[0]


def points_of(records: Sequence[Record]) -> list[Point]:
    """Those of which both sides have outputs."""
    points = []
    for record in records:
        cell, summaries = record["cell"], [Summary(**one) for one in record["served"]]
        if summaries and all(value is not None for value in record["validated"]):
            value, low, high = record["validated"]
            served = tokens_per_step(summaries)
            validated = Estimate(value=value, low=low, high=high)
            points.append(Point(cell["run"], cell["head"], cell["temperature"], record["depth"], validated, served))
    return points


def correlation(points: Sequence[Point], *, ranks: bool = False) -> Estimate | None:
    """Pearson's between validated and served tokens per step, or Spearman's; the interval is over heads.

    None where all heads have the same on one side.
    """
    from scipy.stats import rankdata

    given = np.asarray([[point.validated.value, point.served.value] for point in points]).T
    if np.ptp(given, axis=1).min() == 0:
        return None
    if ranks:
        given = rankdata(given, axis=1)
    drawn = np.random.default_rng(0).integers(0, len(points), size=(RESAMPLES, len(points)))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = [float(np.corrcoef(given[:, chosen])[0, 1]) for chosen in drawn]
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=float(np.corrcoef(given)[0, 1]), low=float(low), high=float(high))
