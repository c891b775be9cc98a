"""One line of a report: what a cell's raw record says, by name. Reads no file, measures and draws nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TypeAlias

from paceline.bench.limits import limit_of
from paceline.bench.raw import Record
from paceline.bench.statistics import Estimate, efficiency, estimate, ideal_speedup, paired_ratios
from paceline.bench.sweep import CANDIDATE, CONTROL, OTHER, OURS, PLAIN, Cell

PHASES = ("draft", "score", "decide", "rest")
Group: TypeAlias = tuple[str, str, float, float, int]  # label of the run, prompts, temperature, top_p, max_tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A cell beside plain decoding, or beside ``other`` in a head-to-head comparison; of one category if it is given.

    Values are None where nothing counts steps, as in peers, or nothing was left to count. Acceptance and tokens per
    step leave out outputs that mostly repeat themselves; everything else counts all outputs.
    """

    run: str
    conditions: Record  # of the run
    cell: Cell
    attempts: Sequence[Record]  # the last one counts
    other: Cell | None = None
    category: str | None = None

    @property
    def record(self) -> Record:
        return self.attempts[-1]

    @property
    def label(self) -> str:
        """The run in words: precision and threads."""
        num_threads = self.record["num_threads"]
        return f"{self.conditions['dtype']}, {num_threads} thread{'s' if num_threads > 1 else ''}"

    @property
    def suite(self) -> str:
        return self.conditions["suite"]

    @property
    def group(self) -> Group:
        """What must be equal for lines to belong to one table or plot, batch sizes aside."""
        return self.label, self.suite, self.cell.temperature, self.cell.top_p, self.cell.max_tokens

    @property
    def void(self) -> bool:
        """Whether the control failed at every attempt, so that the times say nothing. Where nothing was timed, no."""
        return self.record.get("void", False)

    @property
    def base(self) -> str:
        """The side that the others are compared with, as the record calls it."""
        return PLAIN if self.other is None else OTHER

    @property
    def candidate(self) -> str:
        return CANDIDATE if self.other is None else OURS

    @property
    def control(self) -> float:
        """The base against itself; 1 but for noise."""
        seconds = self.record["seconds"]
        return median(paired_ratios(seconds.get(PLAIN, seconds[self.base]), seconds[CONTROL]))

    @cached_property
    def speedup(self) -> Estimate:
        """Seconds of the base over those of the candidate, paired."""
        return estimate(paired_ratios(self.record["seconds"][self.base], self.record["seconds"][self.candidate]))

    @cached_property
    def category_speedup(self) -> Estimate | None:
        """From the parts that hold this category alone; None where another part holds it too."""
        categories, size = self.conditions["prompts"]["categories"], self.cell.batch_size
        parts = [set(categories[at : at + size]) for at in range(0, len(categories), size)]
        members = [at for at, found in enumerate(parts) if self.category in found]
        sides = [self.record["part_seconds"][name] for name in (self.base, self.candidate)]
        whole = all(len(seconds) == len(parts) for side in sides for seconds in side)
        if not whole or any(len(parts[at]) > 1 for at in members):
            return None
        base, own = ([sum(seconds[at] for at in members) for seconds in side] for side in sides)
        return estimate(paired_ratios(base, own))

    @cached_property
    def speed(self) -> Estimate:
        """Tokens per second over the repeats."""
        return self._speed(self.candidate)

    @cached_property
    def base_speed(self) -> Estimate:
        return self._speed(self.base)

    @property
    def tokens_per_second(self) -> float:
        return self.speed.value

    @property
    def base_tokens_per_second(self) -> float:
        return self.base_speed.value

    @property
    def decoding_tokens_per_second(self) -> float | None:
        """Of the steps alone; None where only whole calls were timed."""
        taken = self.record.get("decode_seconds", {}).get(self.candidate)
        return median(self.record["num_tokens"] / seconds for seconds in taken) if taken else None

    @cached_property
    def limit_tokens_per_second(self) -> float | None:
        """What the machine allows at these tokens per step (bench/limits)."""
        return limit_of(self.record, self.conditions, self.cell)

    @property
    def of_limit(self) -> float | None:
        """The speed of decoding over the limit."""
        speed, limit = self.decoding_tokens_per_second, self.limit_tokens_per_second
        return None if speed is None or limit is None else speed / limit

    @property
    def start_seconds(self) -> float:
        """Loading, and starting a program, for all attempts."""
        return sum(attempt.get("start_seconds", 0.0) for attempt in self.attempts)

    @cached_property
    def texts(self) -> list[Record]:
        """The outputs, of the category if it is given."""
        texts = self.record["texts"]
        if self.category is None:
            return texts
        categories = self.conditions["prompts"]["categories"]
        return [text for text, category in zip(texts, categories, strict=True) if category == self.category]

    @cached_property
    def counts(self) -> list[Record]:
        """Of the outputs that do not mostly repeat themselves."""
        return [text["counts"] for text in self.texts if text["counts"] is not None and not text["looping"]]

    @property
    def tokens_per_step(self) -> float | None:
        """With the target's own token at the end of each step."""
        steps = sum(counts["steps"] for counts in self.counts)
        return sum(counts["emitted"] for counts in self.counts) / steps if steps else None

    @property
    def accepted_per_step(self) -> float | None:
        """Without it."""
        return self._accepted() / sum(counts["steps"] for counts in self.counts) if self._drafted() else None

    @property
    def acceptance(self) -> float | None:
        return self._accepted() / self._drafted() if self._drafted() else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """Accepted over drafted tokens at every depth that was drafted."""
        depth = max((len(counts["drafted"]) for counts in self.counts), default=0)
        drafted, accepted = (
            [sum(counts[name][at] for counts in self.counts) for at in range(depth)] for name in ("drafted", "accepted")
        )
        return tuple(kept / tried for kept, tried in zip(accepted, drafted, strict=True) if tried)

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Of PHASES."""
        return self._step_seconds(self.candidate)

    @property
    def base_step_seconds(self) -> tuple[float, ...]:
        return self._step_seconds(self.base)

    @property
    def costs(self) -> dict[str, float] | None:
        """What the ideal speed-up is made of."""
        own, base, steps = self.step_seconds, self.base_step_seconds, self.record["steps"][self.candidate]
        if not (own and base and steps):
            return None
        per_step = self.record["num_tokens"] / steps
        return {"tokens_per_step": per_step, "draft_seconds": own[0], "target_seconds": base[1]}

    @property
    def ideal(self) -> float | None:
        return None if self.costs is None else ideal_speedup(**self.costs)

    @property
    def efficiency(self) -> float | None:
        return None if self.costs is None else efficiency(self.speedup.value, **self.costs)

    @property
    def num_looping(self) -> int:
        """Outputs that mostly repeat themselves."""
        return sum(text["looping"] for text in self.texts)

    @property
    def differences(self) -> list[int]:
        """Where outputs diverge from the base's, of those that do."""
        return [text["first_difference"] for text in self.texts if text["first_difference"] is not None]

    def _speed(self, side: str) -> Estimate:
        return estimate([self.record["num_tokens"] / seconds for seconds in self.record["seconds"][side]])

    def _drafted(self) -> int:
        return sum(sum(counts["drafted"]) for counts in self.counts)

    def _accepted(self) -> int:
        return sum(sum(counts["accepted"]) for counts in self.counts)

    def _step_seconds(self, side: str) -> tuple[float, ...]:
        """Mean over all steps of all repeats; nothing where no steps were counted."""
        phases, steps = self.record["phases"].get(side), self.record["steps"].get(side)
        if not phases or not steps:
            return ()
        return tuple(sum(repeat[at] for repeat in phases) / (len(phases) * steps) for at in range(len(PHASES)))
