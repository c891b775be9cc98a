"""Steps taken only to learn: the first drafts, plain steps among drafted ones, and drafts of another length."""

from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import final

FIRST_PLAIN = 3  # drafted steps until a plain one, where nothing is known of plain decoding; twice as many then
# Drafted steps until plain ones, which keep the cost of plain decoding known: so many for each plain step that a
# drafted one gains. The less that is, the sooner a wrong cost misleads, and the less plain steps lose.
SOONEST_PLAIN, PER_WON, PLAIN_PERIOD = 24, 512, 256
LESSONS = (2, 1, 4, 1, 2, 4, 1, 2)  # depths of the first drafts of every kind of batch
# Plain steps until they are given again, twice as many each time: the first ones meet cold caches, and few texts.
FIRST_AGAIN = 256
REPEATED = 0.015  # share of these steps that the lessons before them may have lost
DEPTH_PERIOD = 48  # drafted steps between two of another depth, which keep the costs of other depths known
WHOLE_PERIOD = 128  # the same, between two whose chains do not end early, which keep all levels known


def plain_is_due(num_drafted: int, *, times_measured: int, speedup: float) -> bool:
    """Whether it is time for a plain step, ``num_drafted`` drafted ones after the last one, of which the cost was
    measured ``times_measured`` times.
    """
    period = min(PLAIN_PERIOD, max(SOONEST_PLAIN, int(PER_WON * (speedup - 1))))
    return num_drafted >= min(period, FIRST_PLAIN << min(times_measured, 8))


@final
class Exploration:
    """Counts the drafted steps of all calls, so that short ones explore as often as long ones."""

    def __init__(self) -> None:
        self._num_drafted = self._explored_at = 0
        self._lessons: Counter[Hashable] = Counter()  # drafts that were taken, by kind of batch
        self._more: Counter[Hashable] = Counter()  # that are given beside the first ones
        self._again: defaultdict[Hashable, int] = defaultdict(lambda: FIRST_AGAIN)
        self._num_plain: Counter[Hashable] = Counter()  # plain steps since then
        self._lost: defaultdict[Hashable, float] = defaultdict(float)  # plain steps, by what was explored since then
        self._taught = False
        self.num_lessons = 0  # that were given, of all kinds

    def count(self) -> None:
        """A drafted step."""
        self._num_drafted += 1

    def skip_lessons(self) -> None:
        """What they teach is known."""
        self._taught, self.num_lessons = True, len(LESSONS)

    def lesson(self, kind: Hashable) -> int:
        """The depth of the next of the first drafts of batches of this kind; 0 after the last one."""
        return LESSONS[self._lessons[kind] % len(LESSONS)] if self._to_come(kind) > 0 else 0

    def is_new(self, kind: Hashable) -> bool:
        """Whether batches of this kind have not had their first lessons."""
        return not self._taught and self._lessons[kind] < len(LESSONS)

    def ensure(self, kind: Hashable, count: int) -> None:
        """Give batches of this kind more lessons, so that ``count`` of them are to come."""
        self._more[kind] += max(0, count - self._to_come(kind))

    def note_plain(self, kind: Hashable, num_steps: int) -> None:
        """Rows of this kind could have drafted in so many steps, and did not."""
        self._num_plain[kind] += num_steps

    def note_explored(self, kind: Hashable, lost: float) -> None:
        """A draft to learn from took so many plain steps more than it gained."""
        self._lost[kind] += lost

    def repeat(self, kind: Hashable) -> None:
        """Give all lessons again if it is time."""
        if self._num_plain[kind] >= max(self._again[kind], self._lost[kind] / REPEATED):
            self._num_plain[kind], self._again[kind], self._lost[kind] = 0, 2 * self._again[kind], 0.0
            self.ensure(kind, len(LESSONS))

    def _to_come(self, kind: Hashable) -> int:
        return self._more[kind] + (0 if self._taught else len(LESSONS)) - self._lessons[kind]

    def take_lesson(self, kind: Hashable) -> None:
        """The lesson is given, and the next one will be the one after it."""
        self._lessons[kind] += 1
        self.num_lessons += 1

    def turn(self, *, ends_early: bool) -> int | None:
        """The number of the turn to draft otherwise than seems best; None where it is not time for one."""
        period = WHOLE_PERIOD if ends_early else DEPTH_PERIOD
        if self._num_drafted - self._explored_at < period:
            return None
        self._explored_at = self._num_drafted
        return self._num_drafted // period
