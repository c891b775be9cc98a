"""Serves a case through the public API and has every result judged; what is refused is counted by option."""

from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from paceline.api import Engine, SamplingParams
from paceline.engine import prefixes, watch
from paceline.verifiers import VERIFIERS
from tests.fuzz import target
from tests.fuzz.cases import COMMON, LENGTH
from tests.fuzz.judge import judge

MOST_REFUSED = 0.2


@dataclass
class Tally:
    """How many rows asked for each option and how many were refused for it; and what was seen."""

    asked: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    seen: Counter = field(default_factory=Counter)
    kept: defaultdict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))  # of what each drafter gave

    @property
    def share(self):
        """Of the rows that were refused."""
        return self.refused["rows"] / max(1, self.asked["rows"])

    @property
    def broken(self):
        """What was refused that may not be."""
        found = [name for name in COMMON if self.refused[name]]
        return [*found, *(["rows"] if self.share >= MOST_REFUSED else [])]


@contextmanager
def everything_is_shared_and_measured_often():
    """Prefixes of three tokens are copied, and plain steps are taken every few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_SHARED", 3)
        patch.setattr(watch, "FIRST", 3)
        patch.setattr(watch, "PERIOD", 5)
        yield


def serve(case, tally):
    """Raise AssertionError where a result is not what its row asked for."""
    name, verifier, shape = case.design
    kind = VERIFIERS.find(verifier)
    running = Engine(
        target.loaded(eager=case.eager),
        drafter=target.drafter(name, shape, eager=case.eager),
        verifier=verifier,
        num_draft_tokens=case.num_draft_tokens,
        batch_size=case.batch_size,
        max_length=LENGTH,
        guidance=any("guidance_scale" in row.options for row in case.rows),
    )
    streams = []
    for row in sorted(case.rows, key=lambda row: row.wait):
        tally.asked.update([*row.options, "rows"])
        for _ in range(row.wait):
            running.advance()
        try:
            streams.append((row, running.submit([list(row.prompt)], [SamplingParams(**row.options)])))
        except ValueError:
            tally.refused.update([*_blamed(running, row), "rows"])
    for row, stream in streams:
        results = stream.drain()
        assert len(results) == row.options.get("n", 1)
        for result in results:
            judge(result, row.prompt, row.options, same_tokens=kind.same_tokens, lossless=kind.lossless)
            tally.seen.update([result.finish_reason, *result.source, "results"])
            tally.kept[name].update(["outputs", *result.source])
    assert running.runner.drafter_error is None, "a drafter that fails costs no token, so nothing else would tell"


def _blamed(running, row):
    """The options that are refused alone; all of the row's where none is."""
    alone = [name for name in row.options if name != "max_tokens" and _is_refused(running, row, name)]
    return alone or list(row.options)


def _is_refused(running, row, name):
    given = {key: row.options[key] for key in {name, "max_tokens"}}
    try:
        running.submit([list(row.prompt)], [SamplingParams(**given)]).close()
    except ValueError:
        return True
    return False
