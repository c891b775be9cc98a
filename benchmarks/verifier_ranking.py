"""Which verifier gains most, by measurement: every verifier with every draft that suits it, in turn.

A condition is one way to sample: a temperature and a top-p. In it plain decoding, twice, and all ways to draft decode
the same prompts with the same seeds, prompt by prompt in turn (bench/runner).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar

from benchmarks.study import (
    Draft,
    Precision,
    ProcessorTime,
    Progress,
    Study,
    Suite,
    Target,
    Timing,
    check_counts,
    conditions_of,
    date,
    last_of,
    missing,
    named,
    option,
    pair_of,
)
from paceline.api import Loaded, build_drafter, load
from paceline.api.prompts import encode
from paceline.bench.columns import Column, Section
from paceline.bench.generation import decoding
from paceline.bench.raw import RawFile, Record, fingerprint
from paceline.bench.runner import Configuration, Measured, compare
from paceline.bench.statistics import Estimate, is_void, pooled_ratio
from paceline.bench.suites import prompts_of
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.base import LM

KIND = "contest"
ALL = "all together"
SIZE = (7.2, 6.4)  # inches
CAPTION = (
    "Each verifier with its best draft, in every sampling setting; whiskers are 95 % intervals. Above: speed-up over "
    "plain decoding, 1 is as fast. Below: the tokens that a row gains per step, which do not depend on the machine."
)
PLAIN, CONTROL = "plain", "control"
CHAINS = ((1, 1), (1, 1, 1, 1), (1, 1, 1, 1, 1, 1))
TREES = ((2, 1), (2, 1, 1), (2, 2, 1))
OF_CHAINS = ("coupled", "rejection", "block")
OF_TREES = ("coupled", "recursive", "traversal", "spectr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A verifier, and the draft that it verifies: how many children every node of a level has."""

    verifier: str
    shape: tuple[int, ...]

    @property
    def draft(self) -> str:
        """What the shape is called."""
        return f"chain of {len(self.shape)}" if max(self.shape) == 1 else "tree " + "x".join(map(str, self.shape))

    def __str__(self) -> str:
        return f"{self.verifier} {self.draft}"


def all_ways(chains: Sequence[tuple[int, ...]] = CHAINS, trees: Sequence[tuple[int, ...]] = TREES) -> list[Way]:
    """Every verifier with every shape that it is meant for."""
    return [
        Way(verifier=verifier, shape=shape)
        for shapes, verifiers in ((chains, OF_CHAINS), (trees, OF_TREES))
        for shape in shapes
        for verifier in verifiers
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How the target is sampled."""

    temperature: float
    top_p: float

    @property
    def name(self) -> str:
        return f"T={self.temperature:g}" + (f", top-p {self.top_p:g}" if self.top_p < 1 else "")


def measure_conditions(
    conditions: Sequence[Condition],
    ways: Sequence[Way],
    *,
    target: Loaded,
    draft: LM,
    prompts: Sequence[Sequence[int]],
    num_seeds: int,
    num_tokens: int,
    seed: int,
    raw: RawFile,
    run: str,
    clock: Callable[[], float],
    say: Progress = lambda _: None,
) -> None:
    """Put into ``raw`` what it lacks of ``conditions``.

    Every prompt is continued by ``num_tokens`` tokens with ``num_seeds`` seeds of its own.
    """
    check_counts(num_seeds=num_seeds, num_tokens=num_tokens, num_prompts=len(prompts))

    def identify(condition: Condition) -> Record:
        return {"kind": KIND, "run": run, "contest": asdict(condition)}

    for condition, identity in missing(raw, conditions, identify, say):

        def configure(name: str, way: Way | None = None, condition: Condition = condition) -> Configuration:
            return decoding(
                name,
                target=target,
                prompts=[prompt for _ in range(num_seeds) for prompt in prompts],
                num_tokens=num_tokens,
                drafter=None if way is None else ModelDrafter(lm=draft, shape=Topology.branching(way.shape)),
                num_draft_tokens=0 if way is None else len(way.shape),
                batch_size=1,
                temperature=condition.temperature,
                top_p=condition.top_p,
                seed=seed,
                verifier="coupled" if way is None else way.verifier,
            )

        sides = [configure(PLAIN), *(configure(str(way), way) for way in ways), configure(CONTROL)]
        for side in sides:  # one prompt each, so that nothing is built or compiled while others are timed
            side.parts[0]()
        compared = compare(sides, baseline=PLAIN, repeats=1, warm_up=0, clock=clock, progress=say)
        taken = {measured.name: _record(measured) for measured in compared.measured}
        raw.append({**identity, "void": is_void([compared[CONTROL].speedup.median]), "sides": taken})


def _record(measured: Measured) -> dict[str, list[float] | list[int]]:
    """Of every prompt: seconds, tokens and steps."""
    sample = measured.sample
    assert sample.texts is not None
    return {
        "seconds": list(measured.part_seconds[0]),
        "tokens": [len(tokens) for tokens in sample.tokens],
        "steps": [summary.steps for summary in sample.texts],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All ways in one condition or in several together, in the order given."""

    name: str  # the condition's, or ALL
    ways: tuple[Way, ...]
    sides: Record  # seconds, tokens and steps of every prompt, by side
    void: bool  # the machine was not quiet, so times say nothing; tokens per step do not depend on it

    def tokens_per_step(self, way: Way) -> Estimate:
        """Of a way."""
        return self._pooled("tokens", str(way), "steps")

    def tokens_per_second(self, way: Way | str) -> Estimate:
        """Of a way, or of plain decoding."""
        return self._pooled("tokens", str(way), "seconds")

    def speedup(self, way: Way | str, base: Way | str = PLAIN) -> Estimate:
        """Over plain decoding, or another way, of the same prompts."""
        return pooled_ratio(self.sides[str(base)]["seconds"], self.sides[str(way)]["seconds"])

    def over_coupled(self, way: Way) -> Estimate | None:
        """Speed-up over ``coupled`` with a draft of the same shape, where that was measured."""
        rival = Way(verifier="coupled", shape=way.shape)
        return None if way == rival or str(rival) not in self.sides else self.speedup(way, rival)

    def best(self, verifier: str, by: Callable[[Way], Estimate] | None = None) -> Way | None:
        """The shape of a verifier with the largest speed-up, or what is given."""
        found = [way for way in self.ways if way.verifier == verifier]
        return max(found, key=lambda way: (by or self.speedup)(way).value, default=None)

    def section(self) -> Section[Way]:
        """A line for every way."""
        columns: list[Column[Way]] = [
            Column("draft", "draft", left=True),
            Column("verifier", "verifier", left=True),
            Column("tokens/step", self.tokens_per_step, ".2f"),
            Column("tokens/s", lambda way: self.tokens_per_second(way).value, ".0f"),
            Column("over plain", self.speedup, ".2f"),
            Column("over coupled", self.over_coupled, ".2f"),
        ]
        return Section(title=self.name, columns=columns, lines=self.ways)

    def _pooled(self, above: str, side: str, below: str) -> Estimate:
        return pooled_ratio(self.sides[side][above], self.sides[side][below])


def rankings_of(run: Record, records: Sequence[Record]) -> list[Ranking]:
    """Of one run, every condition by its last measurement that is not void, then all of several together."""
    ways = tuple(Way(verifier=way["verifier"], shape=tuple(way["shape"])) for way in run["conditions"]["ways"])
    chosen = last_of(records, run["run"], KIND, lambda record: tuple(record["contest"].values()))

    def rank(name: str, records: Sequence[Record]) -> Ranking:
        sides = {
            side: {field: [value for record in records for value in record["sides"][side][field]] for field in fields}
            for side, fields in records[0]["sides"].items()
        }
        return Ranking(name=name, ways=ways, sides=sides, void=any(record["void"] for record in records))

    rankings = [rank(Condition(**record["contest"]).name, [record]) for record in chosen]
    return [*rankings, rank(ALL, chosen)] if len(rankings) > 1 else rankings


PLAIN_RATE, PLAIN_RATIO = "plain, tokens/s", "plain over itself"


def _best_column(ranking: Ranking) -> Column[str]:
    """Every verifier at its fastest shape: speed-up over plain, tokens per step, shape."""

    def text(line: str) -> str | None:
        if line == PLAIN_RATE:
            return f"{ranking.tokens_per_second(PLAIN).value:.0f}"
        if line == PLAIN_RATIO:
            return f"{ranking.speedup(CONTROL).value:.2f}{' void' if ranking.void else ''}"
        way = ranking.best(line)
        if way is None:
            return None
        return f"{ranking.speedup(way):.2f}\n{ranking.tokens_per_step(way).value:.2f}, {way.draft}"

    return Column(ranking.name, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierRanking(Study):
    """Which verifier gains most, by measurement.

    Every verifier decodes with every draft that suits it, beside plain decoding, at several temperatures.
    """

    kind: ClassVar[str] = KIND
    title: ClassVar[str] = "Verifiers"
    needs: ClassVar[tuple[str, ...]] = ("matplotlib",)

    target: Target = None
    draft: Draft = None
    dtype: Precision = "bfloat16"
    suite: Suite = "mixed"
    num_prompts: Annotated[int, option("How many.")] = 6
    seeds: Annotated[int, option("Outputs of every prompt.")] = 3
    seed: Annotated[int, option("Of the prompts' choice, and the first of the outputs'.")] = 0
    max_tokens: Annotated[int, option("New tokens of every prompt.")] = 48
    temperature: Annotated[tuple[float, ...], option("May be repeated.")] = (0.5, 0.7, 1.0)
    top_p: Annotated[tuple[float, ...], option("May be repeated.")] = (1.0, 0.95)
    processor_time: ProcessorTime = False

    def check(self) -> None:
        """Raise ValueError for one model of a pair."""
        pair_of(self.target, self.draft)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        paths = pair_of(self.target, self.draft)
        target, draft = (load(path, dtype=self.dtype, device="cpu", threads=self.threads) for path in paths)
        drafter = build_drafter(draft, target=target)
        assert isinstance(drafter, ModelDrafter)
        prompts = [encode(target, text) for text in prompts_of(self.suite, self.num_prompts, seed=self.seed)]
        choices = {
            "suite": self.suite,
            "prompts": fingerprint({"prompts": prompts}),
            "num_prompts": len(prompts),
            "num_seeds": self.seeds,
            "num_tokens": self.max_tokens,
            "seed": self.seed,
            "processor_time": self.processor_time,
            "ways": [asdict(way) for way in all_ways()],
        }
        measure_conditions(
            [Condition(temperature=at, top_p=top_p) for top_p, at in product(self.top_p, self.temperature)],
            all_ways(),
            target=target,
            draft=drafter.lm,
            prompts=prompts,
            num_seeds=self.seeds,
            num_tokens=self.max_tokens,
            seed=self.seed,
            raw=raw,
            run=raw.begin(conditions_of(named(paths), self.dtype, **choices), date),
            clock=Timing(processor_time=self.processor_time).clock,
            say=say,
        )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Any]]:
        """Every way in every condition, then every verifier at its fastest draft."""
        rankings = rankings_of(run, records)
        columns = [Column("verifier", str, left=True), *map(_best_column, rankings)]
        best = Section(
            title="the fastest draft of each verifier",
            columns=columns,
            lines=[*_verifiers(rankings), PLAIN_RATE, PLAIN_RATIO],
        )
        return [*(ranking.section() for ranking in rankings), best]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """Above, the speed-up of every verifier at its fastest shape; below, its most tokens per step."""
        from paceline.bench import drawing  # needs the optional matplotlib

        rankings = rankings_of(run, records)
        names = _verifiers(rankings)

        sound = [ranking for ranking in rankings if not ranking.void]
        shown = [
            (Ranking.speedup, sound, "speed-up over plain"),
            (Ranking.tokens_per_step, rankings, "tokens per step"),
        ]
        shown = [one for one in shown if one[1]]

        def panels(axes: Sequence[Any]) -> None:
            for place, (field, here, what) in zip(axes, shown, strict=True):
                for at, name in enumerate(names):
                    shift = 0.11 * (at - (len(names) - 1) / 2)
                    found = [
                        (column + shift, field(ranking, best))
                        for column, ranking in enumerate(here)
                        if (best := ranking.best(name, partial(field, ranking))) is not None
                    ]
                    x, values = [x for x, _ in found], [value for _, value in found]
                    drawing.error_bars(place, x, values, name, linestyle="")
                if field == Ranking.speedup:
                    drawing.baseline(place)
                place.set_xticks(range(len(here)), labels=[one.name.replace(", ", "\n") for one in here])
                drawing.finish(place, y=what, columns=3)

        return drawing.draw_panels(
            panels,
            size=SIZE,
            title=title,
            caption=f"{CAPTION}{drawing.left_out(len(rankings) - len(sound), len(rankings), 'speed-ups')}",
            rows=len(shown),
        )


def _verifiers(rankings: Sequence[Ranking]) -> list[str]:
    """The verifiers that take part, in the order given."""
    return list(dict.fromkeys(way.verifier for ranking in rankings for way in ranking.ways))
