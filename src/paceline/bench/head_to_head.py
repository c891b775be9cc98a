"""Best against best: which cells are timed against each other directly, and what that came to. Times nothing.

Two speed-ups over the same plain decoding compare the two only by way of it. What a project claims over another one is
timed in one interleaved run. The other side is the base of the ratio, and its control.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

from paceline.bench.figures import attempts_by
from paceline.bench.interleaved import plain_cell
from paceline.bench.line import Line
from paceline.bench.raw import CELL, CHOICE, HEAD_TO_HEAD, RawFile, Record
from paceline.bench.runner import Configuration
from paceline.bench.statistics import first_difference
from paceline.bench.sweep import CANDIDATE, CONTROL, OTHER, OURS, PLAIN, Axes, Cell, Sides, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadToHead:
    """Two cells of the same prompts, batch size, temperature and length; our plain decoding is called PLAIN."""

    ours: Cell
    other: Cell

    def __str__(self) -> str:
        cell = self.ours
        return f"{cell.way} against {self.other.way}, batch {cell.batch_size}, temperature {cell.temperature:g}"

    def identity(self) -> Record:
        """The fields of its records that no other task's have."""
        return {"kind": HEAD_TO_HEAD, "pair": self.as_record()}

    def as_record(self) -> Record:
        """Both cells."""
        return {OURS: self.ours.as_record(), OTHER: self.other.as_record()}

    def sides(self, workbench: Workbench) -> Sides:
        """Our side against the other, which runs twice."""
        return (
            _side(OTHER, self.other, workbench),
            _side(OURS, self.ours, workbench),
            _side(CONTROL, self.other, workbench),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The pairs of one batch size, temperature and length, and the cells that they were chosen from."""

    base: Cell  # our plain decoding
    pairs: tuple[HeadToHead, ...]
    considered: tuple[Line, ...]

    def as_record(self, run: str) -> Record:
        """What was chosen, and the speed-ups over our plain decoding that decided it; void cells decide nothing."""
        fields = ("batch_size", "temperature", "top_p", "max_tokens", *(() if self.base.isa is None else ("isa",)))
        return {
            "kind": CHOICE,
            "run": run,
            "group": {name: getattr(self.base, name) for name in fields},
            "pairs": [pair.as_record() for pair in self.pairs],
            "considered": [
                {"cell": line.cell.as_record(), "speedup": line.speedup.value, "void": line.void}
                for line in self.considered
            ],
        }


def choose_pairs(figures: Iterable[Line], *, run: str, axes: Axes) -> list[Choice]:
    """Who meets whom, for every batch size, temperature and length of ``axes``; nothing where it has no peers.

    Chosen from all cells of ``run`` that are not void. Our plain decoding meets each peer's. Our fastest drafter at its
    fastest length meets the fastest way that each peer drafts in, at its own length, and the peer's plain decoding
    where it cannot draft or where that one was the faster.
    """
    lines = [line for line in figures if line.run == run]
    choices: list[Choice] = []
    for (temperature, top_p), max_tokens, batch in product(axes.samplings, axes.max_tokens, axes.batch_sizes):
        base = Cell(
            drafter=PLAIN,
            num_draft_tokens=0,
            batch_size=batch,
            temperature=temperature,
            max_tokens=max_tokens,
            top_p=top_p,
            isa=axes.only_isa,
        )
        considered = tuple(line for line in lines if plain_cell(line.cell) == base)
        if pairs := tuple(_pairs(considered, axes=axes, base=base)):
            choices.append(Choice(base=base, pairs=pairs, considered=considered))
    return choices


def keep_choices(choices: Iterable[Choice], *, raw: RawFile, run: str) -> list[HeadToHead]:
    """Write to ``raw`` the choices that are not the last ones there; all their pairs."""
    pairs: list[HeadToHead] = []
    for choice in choices:
        record = choice.as_record(run)
        if _last_choices(raw.records).get(_choice_key(record)) != record:
            raw.append(record)
        pairs.extend(choice.pairs)
    return pairs


def head_to_head_figures(records: Sequence[Record]) -> list[Line]:
    """A line for every pair of every group's last choice that was timed, of its last attempt.

    Sides that were interleaved in one run need no run of their own: their ratio is of the same repeats. Raises
    ValueError for a pair whose run is described nowhere in the file.
    """
    taken = attempts_by(records, HEAD_TO_HEAD, lambda record: _pair(record["pair"]))
    timed = {(run, pair): (conditions, attempts) for run, pair, conditions, attempts in taken}
    cells = _cells_of(records)
    chosen = [(record["run"], _pair(pair)) for record in _last_choices(records).values() for pair in record["pairs"]]
    return [
        Line(run=run, conditions=found[0], cell=pair.ours, other=pair.other, attempts=found[1])
        for run, pair in chosen
        if (found := _shared(cells, run, pair) or timed.get((run, pair))) is not None
    ]


def unpaired(pairs: Iterable[HeadToHead], records: Sequence[Record], *, run: str) -> list[HeadToHead]:
    """Those whose sides were both timed, but in different runs: these must be timed again, directly."""
    cells = _cells_of(records)
    return [
        pair
        for pair in pairs
        if {(run, pair.ours), (run, pair.other)} <= set(cells) and _shared(cells, run, pair) is None
    ]


def undecided(records: Sequence[Record]) -> list[str]:
    """The groups, in words, whose best could not be chosen: all cells of one side are void or missing."""
    return [
        "batch {batch_size}, temperature {temperature:g}, {max_tokens} tokens".format(**record["group"])
        for record in _last_choices(records).values()
        if all(pair[OURS]["drafter"] == PLAIN for pair in record["pairs"])
    ]


def _pairs(lines: Sequence[Line], *, axes: Axes, base: Cell) -> Iterator[HeadToHead]:
    ours = _fastest(line for line in lines if line.cell.drafter in axes.our_drafters)
    for peer in axes.peers:
        plain_peer = replace(base, drafter=peer.plain)
        yield HeadToHead(ours=base, other=plain_peer)
        if ours is None:
            continue
        drafting = axes.drafting(peer, base.batch_size)
        drafted = _fastest(line for line in lines if line.cell.drafter in drafting)
        undrafted = _fastest(line for line in lines if line.cell == plain_peer)
        if drafted is not None:
            yield HeadToHead(ours=ours.cell, other=drafted.cell)
        overtaken = drafted is not None and undrafted is not None and undrafted.speedup.value > drafted.speedup.value
        if overtaken or not drafting:
            yield HeadToHead(ours=ours.cell, other=plain_peer)


def _fastest(lines: Iterable[Line]) -> Line | None:
    return max((line for line in lines if not line.void), key=lambda line: line.speedup.value, default=None)


def _side(name: str, cell: Cell, workbench: Workbench) -> Configuration:
    return workbench.plain(name, cell) if cell.drafter == PLAIN else workbench.candidate(name, cell)


_Attempts: TypeAlias = tuple[Record, list[Record]]  # the run's conditions, and what was measured


def _cells_of(records: Iterable[Record]) -> dict[tuple[str, Cell], _Attempts]:
    taken = attempts_by(records, CELL, lambda record: Cell(**record["cell"]))
    return {(run, cell): (conditions, attempts) for run, cell, conditions, attempts in taken}


def _shared(cells: Mapping[tuple[str, Cell], _Attempts], run: str, pair: HeadToHead) -> _Attempts | None:
    """What a pair's own record would say, from the cells of its sides, if they were interleaved in one run."""
    sides = [cells[run, cell] for cell in (pair.ours, pair.other) if (run, cell) in cells]
    if len(sides) < 2:
        return None
    (conditions, attempts), (_, other_attempts) = sides
    ours, other = attempts[-1], other_attempts[-1]
    if ours.get("interleaved") is None or ours["interleaved"] != other.get("interleaved"):
        return None
    seconds = {
        OTHER: other["seconds"][CANDIDATE],
        OURS: ours["seconds"][CANDIDATE],
        PLAIN: ours["seconds"][PLAIN],
        CONTROL: ours["seconds"][CONTROL],
    }
    both = zip(ours["texts"], ours["rests"], other["texts"], other["rests"], strict=True)
    texts = [{**text, "first_difference": _difference(text, rest, *others)} for text, rest, *others in both]
    return conditions, [{**ours, "seconds": seconds, "texts": texts}] * len(attempts)


def _difference(ours: Record, our_rest: Sequence[int], other: Record, other_rest: Sequence[int]) -> int | None:
    """Where two outputs first differ, from where each leaves that of plain decoding and how it goes on there."""
    places = [text["first_difference"] for text in (ours, other) if text["first_difference"] is not None]
    if len(places) < 2 or places[0] != places[1]:
        return min(places, default=None)
    within = first_difference(our_rest, other_rest)
    return None if within is None else places[0] + within


def _pair(record: Record) -> HeadToHead:
    return HeadToHead(ours=Cell(**record[OURS]), other=Cell(**record[OTHER]))


def _choice_key(record: Record) -> tuple[object, ...]:
    return record["run"], *record["group"].values()


def _last_choices(records: Iterable[Record]) -> dict[tuple[object, ...], Record]:
    return {_choice_key(record): record for record in records if record["kind"] == CHOICE}
