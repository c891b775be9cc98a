"""What contests between verifiers say: tokens per step and speed-up of every way, with intervals. Times nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from benchmarks.verifier_ranking.contests import CONTROL, PLAIN, Contest, Way
from paceline.bench.raw import CONTEST, RUN, Record
from paceline.bench.statistics import Estimate, pooled_ratio

ALL = "all together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One way in one contest."""

    way: Way
    tokens_per_step: Estimate
    tokens_per_second: Estimate
    speedup: Estimate  # over plain decoding of the same texts
    over_coupled: Estimate | None  # speed-up over ``coupled`` with a draft of the same shape, where that was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All ways of one contest or of several together, in the order given."""

    name: str  # the contest's, or ALL
    plain: Estimate  # tokens per second
    control: Estimate  # plain decoding's speed-up over itself
    void: bool  # the machine was not quiet, so times say nothing; tokens per step do not depend on it
    placed: tuple[Placed, ...]

    def best(self, verifier: str) -> Placed | None:
        """The fastest shape of a verifier."""
        own = [placed for placed in self.placed if placed.way.verifier == verifier]
        return max(own, key=lambda placed: placed.speedup.value, default=None)

    def longest(self, verifier: str) -> Placed | None:
        """The shape with which a verifier gains the most tokens a step."""
        own = [placed for placed in self.placed if placed.way.verifier == verifier]
        return max(own, key=lambda placed: placed.tokens_per_step.value, default=None)


def rankings_of(records: Sequence[Record]) -> list[Ranking]:
    """Of the last run in ``records``, every contest by its last sound measurement, then all of several together.

    Raises ValueError for no run.
    """
    runs = [record for record in records if record["kind"] == RUN and "ways" in record["conditions"]]
    if not runs:
        raise ValueError("no comparison of verifiers in these figures: give a file that make rank-verifiers wrote")
    run = runs[-1]
    ways = [Way(verifier=way["verifier"], shape=tuple(way["shape"])) for way in run["conditions"]["ways"]]
    chosen: dict[Contest, Record] = {}
    for record in records:
        if record["kind"] == CONTEST and record["run"] == run["run"]:
            contest = Contest(**record["contest"])
            if contest not in chosen or not record["void"]:
                chosen[contest] = record
    rankings = [_rank(str(contest), [record], ways) for contest, record in chosen.items()]
    return [*rankings, _rank(ALL, list(chosen.values()), ways)] if len(rankings) > 1 else rankings


def _rank(name: str, records: Sequence[Record], ways: Sequence[Way]) -> Ranking:
    sides = {
        side: {field: [value for record in records for value in record["sides"][side][field]] for field in fields}
        for side, fields in records[0]["sides"].items()
    }
    plain = sides[PLAIN]

    def place(way: Way) -> Placed:
        own = sides[str(way)]
        rival = sides.get(str(Way(verifier="coupled", shape=way.shape)))
        return Placed(
            way=way,
            tokens_per_step=pooled_ratio(own["tokens"], own["steps"]),
            tokens_per_second=pooled_ratio(own["tokens"], own["seconds"]),
            speedup=pooled_ratio(plain["seconds"], own["seconds"]),
            over_coupled=None if rival is None else pooled_ratio(rival["seconds"], own["seconds"]),
        )

    return Ranking(
        name=name,
        plain=pooled_ratio(plain["tokens"], plain["seconds"]),
        control=pooled_ratio(plain["seconds"], sides[CONTROL]["seconds"]),
        void=any(record["void"] for record in records),
        placed=tuple(map(place, ways)),
    )


def verifiers_of(rankings: Sequence[Ranking]) -> list[str]:
    """The verifiers that take part, in the order given."""
    return list(dict.fromkeys(placed.way.verifier for ranking in rankings for placed in ranking.placed))


def best_table(rankings: Sequence[Ranking], title: str) -> Table:
    """Every verifier at its fastest shape in every contest: speed-up over plain, tokens per step, shape."""
    table = Table("verifier", title=title)
    for ranking in rankings:
        table.add_column(ranking.name, justify="right")
    for verifier in verifiers_of(rankings):
        cells = [ranking.best(verifier) for ranking in rankings]
        table.add_row(verifier, *("-" if placed is None else _cell(placed) for placed in cells))
    table.add_row("plain, tokens/s", *(f"{ranking.plain.value:.0f}" for ranking in rankings))
    table.add_row("plain over itself", *(f"{r.control.value:.2f}" + (" void" if r.void else "") for r in rankings))
    return table


def whole_table(ranking: Ranking) -> Table:
    """Every way of one contest."""
    table = Table("draft", "verifier", title=ranking.name)
    for title in ("tokens/step", "tokens/s", "over plain", "over coupled"):
        table.add_column(title, justify="right")
    for placed in ranking.placed:
        over = placed.over_coupled
        table.add_row(
            str(placed.way).removeprefix(f"{placed.way.verifier} "),
            placed.way.verifier,
            _interval(placed.tokens_per_step),
            f"{placed.tokens_per_second.value:.0f}",
            _interval(placed.speedup),
            "-" if over is None or placed.way.verifier == "coupled" else _interval(over),
        )
    return table


def _cell(placed: Placed) -> str:
    shape = str(placed.way).removeprefix(f"{placed.way.verifier} ")
    speed = placed.speedup
    return f"{speed.value:.2f}x ({speed.low:.2f}-{speed.high:.2f})\n{placed.tokens_per_step.value:.2f}, {shape}"


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} ({estimate.low:.2f}-{estimate.high:.2f})"
