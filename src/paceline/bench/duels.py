"""Best against best: pairs of cells that are timed against each other directly, and what that came to.

Two speed-ups over the same plain decoding compare the two only by way of it. What a project claims over another one is
timed in one alternating run. The other side is the base of the ratio, and its control. Knows nothing of who the peers
are, times nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median

from paceline.bench.figures import Figures, Group, attempts_by, label_of
from paceline.bench.raw import CHOICE, DUEL, RawFile, Record
from paceline.bench.runner import Configuration
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.bench.sweep import CONTROL, PLAIN, Axes, Cell, Sides, Workbench

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
    duels: tuple[Duel, ...]
    considered: tuple[Figures, ...]

    def as_record(self, run: str) -> Record:
        """What was chosen, and the speed-ups over our plain decoding that decided it; void cells decide nothing."""
        return {
            "kind": CHOICE,
            "run": run,
            "group": {"batch_size": self.batch_size, "temperature": self.temperature, "max_tokens": self.max_tokens},
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
        return self.label, self.suite, self.duel.own.temperature, self.duel.own.max_tokens


def choose_duels(figures: Iterable[Figures], *, run: str, axes: Axes) -> list[Choice]:
    """Who meets whom, for every batch size, temperature and length of ``axes``; nothing where it has no peers.

    Chosen from all cells of ``run`` that are not void. Our plain decoding meets each peer's. Our fastest drafter at its
    fastest length meets the fastest way that each peer drafts in, at its own length, and the peer's plain decoding
    where it cannot draft or where that one was the faster.
    """
    own_run = [line for line in figures if line.run == run]
    choices: list[Choice] = []
    for temperature, max_tokens, batch in product(axes.temperatures, axes.max_tokens, axes.batch_sizes):
        group = (batch, temperature, max_tokens)
        lines = [line for line in own_run if _group(line.cell) == group]
        duels = tuple(_duels(lines, axes=axes, batch=batch, temperature=temperature, max_tokens=max_tokens))
        if duels:
            choice = Choice(
                batch_size=batch, temperature=temperature, max_tokens=max_tokens, duels=duels, considered=tuple(lines)
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

    Raises ValueError for a duel whose run is described nowhere in the file.
    """
    taken = attempts_by(records, DUEL, lambda record: _duel(record["duel"]))
    conditions = {(run, duel): (found, attempts) for run, duel, found, attempts in taken}
    chosen = [(record["run"], _duel(duel)) for record in _last_choices(records).values() for duel in record["duels"]]
    return [_figures(*key, *conditions[key]) for key in chosen if key in conditions]


def undecided(records: Sequence[Record]) -> list[str]:
    """The groups, in words, whose best could not be chosen: all cells of one side are void or missing."""
    return [
        "batch {batch_size}, temperature {temperature:g}, {max_tokens} tokens".format(**record["group"])
        for record in _last_choices(records).values()
        if all(duel[OWN]["drafter"] == PLAIN for duel in record["duels"])
    ]


def _duels(lines: Sequence[Figures], *, axes: Axes, batch: int, temperature: float, max_tokens: int) -> Iterator[Duel]:
    own = _fastest(line for line in lines if line.cell.drafter in axes.drafters)
    for peer in axes.peers:
        plain, plain_peer = (
            Cell(
                drafter=drafter,
                num_draft_tokens=0,
                batch_size=batch,
                temperature=temperature,
                max_tokens=max_tokens,
            )
            for drafter in (PLAIN, peer.plain)
        )
        yield Duel(own=plain, other=plain_peer)
        if own is None:
            continue
        drafting = peer.drafting_at(batch)
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


def _group(cell: Cell) -> tuple[int, float, int]:
    return cell.batch_size, cell.temperature, cell.max_tokens


def _duel(record: Record) -> Duel:
    return Duel(own=Cell(**record[OWN]), other=Cell(**record[OTHER]))


def _choice_key(record: Record) -> tuple[object, ...]:
    group = record["group"]
    return record["run"], group["batch_size"], group["temperature"], group["max_tokens"]


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
        control=median(paired_ratios(seconds[OTHER], seconds[CONTROL])),
        ratio=estimate(paired_ratios(seconds[OTHER], seconds[OWN])),
        tokens_per_second=median(record["num_tokens"] / spent for spent in seconds[OWN]),
        other_tokens_per_second=median(record["num_tokens"] / spent for spent in seconds[OTHER]),
        num_texts=len(texts),
        num_looping=sum(text["looping"] for text in texts),
        num_different=len(differences),
        first_difference=min(differences, default=None),
    )
