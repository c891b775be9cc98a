"""Figures per category of prompts, for suites that have categories. Pure: reads no file and measures nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.bench.figures import Figures, Group, attempts_by, best, group_of, label_of
from paceline.bench.raw import CELL, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.bench.sweep import CANDIDATE, PLAIN, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryFigures:
    """One category of one cell. Outputs that mostly repeat themselves are left out of all but the speed-up."""

    run: str
    label: str  # the run in words: precision and threads
    suite: str
    cell: Cell
    category: str
    void: bool  # the cell's control failed: the times say nothing
    speedup: Estimate | None  # None where a batch holds prompts of other categories too
    tokens_per_step: float | None  # None where nothing counts steps
    acceptance: float | None
    num_texts: int
    num_looping: int

    @property
    def group(self) -> Group:
        """What must be equal for lines to belong to one table, batch sizes aside."""
        return group_of(self.label, self.suite, self.cell)


def category_figures_of(records: Iterable[Record]) -> list[CategoryFigures]:
    """A line for every category of every cell, of its last attempt; none for prompts without categories.

    Raises ValueError for a cell whose run is described nowhere in the file.
    """
    lines: list[CategoryFigures] = []
    for run, cell, conditions, attempts in attempts_by(records, CELL, lambda record: Cell(**record["cell"])):
        categories: Sequence[str] = conditions.get("prompts", {}).get("categories") or ()
        for category in dict.fromkeys(categories):
            lines.append(_figures(run, cell, conditions, attempts[-1], categories, category))
    return lines


def at_best(lines: Iterable[CategoryFigures], figures: Iterable[Figures]) -> list[CategoryFigures]:
    """Those of the draft length at which each drafter was fastest over all categories; void cells take no part."""
    chosen = {(line.run, line.cell) for line in best(figures)}
    return [line for line in lines if (line.run, line.cell) in chosen]


def _figures(
    run: str, cell: Cell, conditions: Record, record: Record, categories: Sequence[str], category: str
) -> CategoryFigures:
    texts = [text for text, one in zip(record["texts"], categories, strict=True) if one == category]
    counted = [text["counts"] for text in texts if text["counts"] is not None and not text["looping"]]
    steps = sum(counts["steps"] for counts in counted)
    drafted = sum(sum(counts["drafted"]) for counts in counted)
    return CategoryFigures(
        run=run,
        label=label_of(conditions, record),
        suite=conditions["suite"],
        cell=cell,
        category=category,
        void=record["void"],
        speedup=_speedup(cell, record, categories, category),
        tokens_per_step=sum(counts["emitted"] for counts in counted) / steps if steps else None,
        acceptance=sum(sum(counts["accepted"]) for counts in counted) / drafted if drafted else None,
        num_texts=len(texts),
        num_looping=sum(text["looping"] for text in texts),
    )


def _speedup(cell: Cell, record: Record, categories: Sequence[str], category: str) -> Estimate | None:
    """From the parts that hold this category alone; None where another part holds it too."""
    size = cell.batch_size
    parts = [set(categories[at : at + size]) for at in range(0, len(categories), size)]
    members = [at for at, found in enumerate(parts) if category in found]
    sides = [record["part_seconds"][name] for name in (PLAIN, CANDIDATE)]
    if any(len(parts[at]) > 1 for at in members) or any(
        len(seconds) != len(parts) for side in sides for seconds in side
    ):
        return None
    plain, candidate = ([sum(seconds[at] for at in members) for seconds in side] for side in sides)
    return estimate(paired_ratios(plain, candidate))
