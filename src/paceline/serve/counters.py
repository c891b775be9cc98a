"""What a server counts while it runs: plain numbers, changed and read in the engine's thread alone."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import final

from paceline.api.results import Result
from paceline.api.submissions import Observer

REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # as vLLM names them
# Upper bounds in seconds: vLLM's, and smaller ones before them for small models.
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


@final
class Distribution:
    """How many values are at most each of ``bounds``, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus reads them: each bound with the values up to it."""
        below, found = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            below += count
            found.append(("+Inf" if bound == float("inf") else str(bound), below))
        return found


@final
class Counters(Observer):
    """Tokens and gaps as they come; what a request drafted when it ends, which is then exactly what its result says."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generated = 0
        self.steps: Counter[int] = Counter()  # by rows
        self.ended_by: Counter[str] = Counter(dict.fromkeys(REASONS.values(), 0))
        self.between = Distribution(TOKEN)  # seconds between two gains of an output
        self.first, self.queued = Distribution(FIRST_TOKEN), Distribution(FIRST_TOKEN)
        self.whole, self.per_token = Distribution(WHOLE), Distribution(TOKEN)
        self.num_drafts = self.row_steps = self.emitted = 0
        self.drafted: list[int] = []  # tokens, by their depth
        self.accepted: list[int] = []
        self.allowed: Counter[int] = Counter()  # steps of requests, by what the plan let them draft
        self.no_draft: Counter[str] = Counter()  # steps without a draft, by reason

    def stepped(self, rows: int) -> None:
        self.steps[rows] += 1

    def gained(self, num: int, seconds: float | None) -> None:
        self.generated += num
        if seconds is not None:
            self.between.add(seconds)

    def ended(self, results: Sequence[Result], waited: float) -> None:
        for result in results:
            self._end(result, waited)

    def failed(self, num: int) -> None:
        self.ended_by["error"] += num

    def _end(self, result: Result, waited: float) -> None:
        summary, times = result.stats.summary, result.stats.times
        self.ended_by[REASONS[result.finish_reason]] += 1
        if result.sample == 0:
            self.prompt_tokens += len(result.prompt_tokens)
        self.queued.add(waited + times.queue)
        self.whole.add(waited + times.total)
        if times.first_token is not None:
            self.first.add(waited + times.first_token)
            if len(result.token_ids) > 1:
                self.per_token.add((times.total - times.first_token) / (len(result.token_ids) - 1))
        missing = len(summary.drafted) - len(self.drafted)
        self.drafted += [0] * missing
        self.accepted += [0] * missing
        for depth, (drafted, accepted) in enumerate(zip(summary.drafted, summary.accepted, strict=True)):
            self.drafted[depth] += drafted
            self.accepted[depth] += accepted
        self.num_drafts += summary.drafted[0] if summary.drafted else 0
        self.row_steps += summary.steps
        self.emitted += summary.emitted
        self.allowed.update(result.stats.draft_lengths.steps)
        self.no_draft.update(result.stats.no_draft)
