"""Best against best: pairs of cells that are timed against each other directly, and what that came to.

Two speed-ups over the same plain decoding compare the two only by way of it. What a project claims over another one is
timed in one alternating run. The other side is the base of the ratio, and its control. Knows nothing of who the peers
are, times nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import median
from typing import TypeAlias

from paceline.bench.figures import Figures, Group, attempts_by, group_of, label_of
from paceline.bench.interleaved import plain_cell
from paceline.bench.raw import CELL, CHOICE, DUEL, RawFile, Record
from paceline.bench.runner import Configuration
from paceline.bench.statistics import Estimate, estimate, first_difference, paired_ratios
from paceline.bench.sweep import CANDIDATE, CONTROL, PLAIN, Axes, Cell, Sides, Workbench

OWN, OTHER = "own", "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """Two cells of the same prompts, batch size, temperature and length; our plain decoding is called PLAIN."""

    own: Cell
    other: Cell

    def __str__(self) -> str:
        cell = self.own
        return f"{cell.way} against {self.other.way}, batch {cell.batch_size}, temperature {cell.temperature:g}"

    def identity(self) -> Record:
        """The fields of its records that no other task's have."""
        return {"kind": DUEL, "duel": self.as_record()}

    def as_record(self) -> Record:
        """Both cells."""
        return {OWN: asdict(self.own), OTHER: asdict(self.other)}

    def sides(self, workbench: Workbench) -> Sides:
        """Our side against the other, which runs twice."""
        return (
            _side(OTHER, self.other, workbench),
            _side(OWN, self.own, workbench),
            _side(CONTROL, self.other, workbench),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The duels of one batch size, temperature and length, and the cells that they were chosen from."""

    batch_size: int
    temperature: float
    max_tokens: int
    top_p: float
    duels: tuple[Duel, ...]
    considered: tuple[Figures, ...]

    def as_record(self, run: str) -> Record:
        """What was chosen, and the speed-ups over our plain decoding that decided it; void cells decide nothing."""
        return {
            "kind": CHOICE,
            "run": run,
            "group": {
                "batch_size": self.batch_size,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "max_tokens": self.max_tokens,
            },
            "duels": [duel.as_record() for duel in self.duels],
            "considered": [
                {"cell": asdict(line.cell), "speedup": line.speedup.value, "void": line.void}
                for line in self.considered
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DuelFigures:
    """What one duel came to."""

    run: str
    label: str  # the run in words: precision and threads
    suite: str
    duel: Duel
    void: bool  # its control failed at every attempt: the times say nothing
    attempts: int
    control: float  # the other side against itself; 1 but for noise
    ratio: Estimate  # the other's seconds over ours, paired: above 1 ours is faster
    tokens_per_second: float
    other_tokens_per_second: float
    num_texts: int
    num_looping: int
    num_different: int  # 0: both sides emitted the same tokens
    first_difference: int | None  # the earliest

    @property
    def group(self) -> Group:
        """What must be equal for lines to stand in one table, batch sizes aside."""
        return group_of(self.label, self.suite, self.duel.own)


def choose_duels(figures: Iterable[Figures], *, run: str, axes: Axes) -> list[Choice]:
    """Who meets whom, for every batch size, temperature and length of ``axes``; nothing where it has no peers.

    Chosen from all cells of ``run`` that are not void. Our plain decoding meets each peer's. Our fastest drafter at its
    fastest length meets the fastest way that each peer drafts in, at its own length, and the peer's plain decoding
    where it cannot draft or where that one was the faster.
    """
    own_run = [line for line in figures if line.run == run]
    choices: list[Choice] = []
    for (temperature, top_p), max_tokens, batch in product(axes.samplings, axes.max_tokens, axes.batch_sizes):
        base = Cell(
            drafter=PLAIN,
            num_draft_tokens=0,
            batch_size=batch,
            temperature=temperature,
            max_tokens=max_tokens,
            top_p=top_p,
        )
        lines = [line for line in own_run if plain_cell(line.cell) == base]
        duels = tuple(_duels(lines, axes=axes, base=base))
        if duels:
            choice = Choice(
                batch_size=batch,
                temperature=temperature,
                max_tokens=max_tokens,
                top_p=top_p,
                duels=duels,
                considered=tuple(lines),
            )
            choices.append(choice)
    return choices


def keep_choices(choices: Iterable[Choice], *, raw: RawFile, run: str) -> list[Duel]:
    """Write to ``raw`` the choices that are not the last ones there; all their duels."""
    duels: list[Duel] = []
    for choice in choices:
        record = choice.as_record(run)
        if _last_choices(raw.records).get(_choice_key(record)) != record:
            raw.append(record)
        duels.extend(choice.duels)
    return duels


def duel_figures_of(records: Sequence[Record]) -> list[DuelFigures]:
    """A line for every duel of every group's last choice that was timed, of its last attempt.

    Sides that took turns in one run with all others need no run of their own: their ratio is of the same repeats.

    Raises ValueError for a duel whose run is described nowhere in the file.
    """
    taken = attempts_by(records, DUEL, lambda record: _duel(record["duel"]))
    conditions = {(run, duel): (found, attempts) for run, duel, found, attempts in taken}
    cells = _cells_of(records)
    chosen = [(record["run"], _duel(duel)) for record in _last_choices(records).values() for duel in record["duels"]]
    shared = {key: found for key in chosen if (found := _shared(cells, *key)) is not None}
    return [_figures(*key, *found) for key in chosen if (found := shared.get(key, conditions.get(key))) is not None]


def unpaired(duels: Iterable[Duel], records: Sequence[Record], *, run: str) -> list[Duel]:
    """Those whose sides were both timed, but in different runs: these must be timed again, directly."""
    cells = _cells_of(records)
    return [
        duel
        for duel in duels
        if {(run, duel.own), (run, duel.other)} <= set(cells) and _shared(cells, run, duel) is None
    ]


def undecided(records: Sequence[Record]) -> list[str]:
    """The groups, in words, whose best could not be chosen: all cells of one side are void or missing."""
    return [
        "batch {batch_size}, temperature {temperature:g}, {max_tokens} tokens".format(**record["group"])
        for record in _last_choices(records).values()
        if all(duel[OWN]["drafter"] == PLAIN for duel in record["duels"])
    ]


def _duels(lines: Sequence[Figures], *, axes: Axes, base: Cell) -> Iterator[Duel]:
    own = _fastest(line for line in lines if line.cell.drafter in axes.own)
    for peer in axes.peers:
        plain_peer = replace(base, drafter=peer.plain)
        yield Duel(own=base, other=plain_peer)
        if own is None:
            continue
        drafting = axes.drafting(peer, base.batch_size)
        drafted = _fastest(line for line in lines if line.cell.drafter in drafting)
        undrafted = _fastest(line for line in lines if line.cell == plain_peer)
        if drafted is not None:
            yield Duel(own=own.cell, other=drafted.cell)
        overtaken = drafted is not None and undrafted is not None and undrafted.speedup.value > drafted.speedup.value
        if overtaken or not drafting:
            yield Duel(own=own.cell, other=plain_peer)


def _fastest(lines: Iterable[Figures]) -> Figures | None:
    return max((line for line in lines if not line.void), key=lambda line: line.speedup.value, default=None)


def _side(name: str, cell: Cell, workbench: Workbench) -> Configuration:
    return workbench.plain(name, cell) if cell.drafter == PLAIN else workbench.candidate(name, cell)


_Attempts: TypeAlias = tuple[Record, list[Record]]  # the run's conditions, and what was taken


def _cells_of(records: Iterable[Record]) -> dict[tuple[str, Cell], _Attempts]:
    taken = attempts_by(records, CELL, lambda record: Cell(**record["cell"]))
    return {(run, cell): (conditions, attempts) for run, cell, conditions, attempts in taken}


def _shared(cells: Mapping[tuple[str, Cell], _Attempts], run: str, duel: Duel) -> _Attempts | None:
    """What a duel's own record would say, from the cells of its sides, if they took turns in one run."""
    sides = [cells.get((run, cell)) for cell in (duel.own, duel.other)]
    if None in sides:
        return None
    (conditions, own_attempts), (_, other_attempts) = (side for side in sides if side is not None)
    own, other = own_attempts[-1], other_attempts[-1]
    if own.get("together") is None or own["together"] != other.get("together"):
        return None
    seconds = {
        OTHER: other["seconds"][CANDIDATE],
        OWN: own["seconds"][CANDIDATE],
        PLAIN: own["seconds"][PLAIN],
        CONTROL: own["seconds"][CONTROL],
    }
    rests = zip(own["texts"], own["rests"], other["texts"], other["rests"], strict=True)
    texts = [{**text, "first_difference": _difference(text, rest, *others)} for text, rest, *others in rests]
    return conditions, [{**own, "seconds": seconds, "texts": texts}] * len(own_attempts)


def _difference(own: Record, own_rest: Sequence[int], other: Record, other_rest: Sequence[int]) -> int | None:
    """Where two texts first differ, from where each leaves that of plain decoding and how it goes on there."""
    places = [text["first_difference"] for text in (own, other) if text["first_difference"] is not None]
    if not places or len(places) == 1 or places[0] != places[1]:
        return min(places, default=None)
    within = first_difference(own_rest, other_rest)
    return None if within is None else places[0] + within


def _duel(record: Record) -> Duel:
    return Duel(own=Cell(**record[OWN]), other=Cell(**record[OTHER]))


def _choice_key(record: Record) -> tuple[object, ...]:
    group = record["group"]
    return record["run"], *group.values()


def _last_choices(records: Iterable[Record]) -> dict[tuple[object, ...], Record]:
    return {_choice_key(record): record for record in records if record["kind"] == CHOICE}


def _figures(run: str, duel: Duel, conditions: Record, taken: Sequence[Record]) -> DuelFigures:
    record = taken[-1]
    seconds, texts = record["seconds"], record["texts"]
    differences = [text["first_difference"] for text in texts if text["first_difference"] is not None]
    return DuelFigures(
        run=run,
        label=label_of(conditions, record),
        suite=conditions["suite"],
        duel=duel,
        void=record["void"],
        attempts=len(taken),
        control=median(paired_ratios(seconds.get(PLAIN, seconds[OTHER]), seconds[CONTROL])),
        ratio=estimate(paired_ratios(seconds[OTHER], seconds[OWN])),
        tokens_per_second=median(record["num_tokens"] / spent for spent in seconds[OWN]),
        other_tokens_per_second=median(record["num_tokens"] / spent for spent in seconds[OTHER]),
        num_texts=len(texts),
        num_looping=sum(text["looping"] for text in texts),
        num_different=len(differences),
        first_difference=min(differences, default=None),
    )
