"""Lists of columns, from which CSV, terminal tables and HTML are made: a heading, a value and a format for each."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.bench.statistics import CONTROL_HIGH, CONTROL_LOW, Estimate

NARROWEST = 13  # characters of a column of names, which folds where the terminal is narrow
T = TypeVar("T")


def spread(spec: str = ".1f", scale: float = 1.0) -> Callable[[Estimate], str]:
    """A scaled estimate with the distance of the farther end of its interval, in percent."""

    def form(value: Estimate) -> str:
        far = max(value.high - value.value, value.value - value.low) / value.value
        return f"{scale * value.value:{spec}} ±{far:.0%}"

    return form


def follow(line: Any, path: str) -> Any:
    """What a dotted path such as ``cell.num_rows`` leads to, through attributes, keys and indices."""
    for part in path.split("."):
        keyed = isinstance(line, Mapping)
        line = line[part] if keyed else line[int(part)] if part.isdigit() else getattr(line, part)
    return line


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a list of lines.

    ``heading`` is its heading in tables; None leaves it out. ``get`` is a dotted path or a function of the line.
    ``form`` is a format specification, also of an Estimate, or a function of the value. ``name`` is its name in CSV,
    where an Estimate takes three columns; None leaves it out. ``wide`` columns are shown in HTML alone. A ``timed``
    value is not shown where the line is void. A ``rare`` column without a single value is left out.
    """

    heading: str | None
    get: str | Callable[[T], Any]
    form: str | Callable[[Any], str] = ""
    name: str | None = None
    left: bool = False
    wide: bool = False
    rare: bool = False
    timed: bool = False
    estimate: bool = False  # the value is an Estimate, even where it is None

    def value(self, line: T) -> Any:
        """What the column shows of a line."""
        return follow(line, self.get) if isinstance(self.get, str) else self.get(line)

    def text(self, line: T) -> str:
        """The value as tables show it."""
        if self.timed and getattr(line, "void", False):
            return "void" if self.estimate else "-"
        value = self.value(line)
        return "-" if value is None else self.form(value) if callable(self.form) else format(value, self.form)

    def shows(self, lines: Iterable[T]) -> bool:
        """Whether a table of these lines has this column."""
        return not self.rare or any(self.value(line) is not None for line in lines)

    def names(self) -> list[str]:
        """Of its CSV columns."""
        if self.name is None:
            return []
        return [self.name, f"{self.name}_low", f"{self.name}_high"] if self.estimate else [self.name]

    def values(self, line: T) -> list[object]:
        """In CSV. Times are there for void lines too, which a column of their own marks."""
        if self.name is None:
            return []
        value = self.value(line)
        if self.estimate:
            return [None] * 3 if value is None else [value.value, value.low, value.high]
        return [value]


def to_csv(columns: Sequence[Column[T]], lines: Iterable[T]) -> str:
    """The columns that have names, a row for each line; empty where there is no value."""
    lines, text = list(lines), io.StringIO()
    columns = [one for one in columns if one.shows(lines)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for column in columns for name in column.names()])
    for line in lines:
        row = [value for column in columns for value in column.values(line)]
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row)
    return text.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(Generic[T]):
    """One table of a report."""

    title: str
    columns: Sequence[Column[T]]
    lines: Sequence[T]
    note: str = ""  # in HTML
    ends: Sequence[int] = ()  # indices of lines that end a part of the table

    def headings(self, *, wide: bool = True) -> list[str]:
        """Of its columns."""
        return [column.heading for column in self._shown(wide) if column.heading is not None]

    def sides(self) -> list[str]:
        """How HTML aligns its columns."""
        return ["left" if column.left else "right" for column in self._shown(wide=True)]

    def rows(self, *, wide: bool = True) -> list[list[str]]:
        """The values as tables show them."""
        return [[column.text(line) for column in self._shown(wide)] for line in self.lines]

    def table(self) -> Table:
        """For a terminal."""
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
        rows = self.rows(wide=False)
        for at, column in enumerate(self._shown(wide=False)):
            least = min(NARROWEST, max((len(row[at]) for row in rows), default=0)) if column.left else None
            justify = "left" if column.left else "right"
            table.add_column(
                column.heading or "", justify=justify, overflow="fold", no_wrap=not column.left, min_width=least
            )
        for at, row in enumerate(rows):
            table.add_row(*row, end_section=at in self.ends)
        if self.void_note:
            table.caption, table.caption_justify = self.void_note, "left"
        return table

    @property
    def void_note(self) -> str:
        """Why lines are void; empty where none is."""
        void = [line for at, line in enumerate(self.lines) if self.is_void(at)]
        controls = dict.fromkeys(f"{follow(line, 'control'):.2f}" for line in void)
        if not controls:
            return ""
        return (
            f"void: timed against itself, what the lines are compared with came to {', '.join(controls)} and not to "
            f"{CONTROL_LOW} to {CONTROL_HIGH}: the machine was not quiet, so that these times say nothing"
        )

    def is_void(self, at: int) -> bool:
        """Whether the times of a line say nothing."""
        return getattr(self.lines[at], "void", False)

    def _shown(self, wide: bool) -> list[Column[T]]:
        shown = (column for column in self.columns if column.heading is not None and (wide or not column.wide))
        return [column for column in shown if column.shows(self.lines)]


def grouped(
    title: Callable[[Any], str],
    columns: Sequence[Column[T]],
    lines: Iterable[T],
    key: Callable[[T], Any],
    *,
    note: str = "",
) -> list[Section[T]]:
    """A section for every value of ``key``, which ``title`` puts in words."""
    groups: dict[Any, list[T]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return [Section(title=title(group), columns=columns, lines=found, note=note) for group, found in groups.items()]
