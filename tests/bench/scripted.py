"""A workbench whose decodings take scripted times on a scripted clock."""

from paceline.bench.runner import Configuration, Sample
from paceline.bench.sweep import CONTROL
from paceline.core.stats import Summary

TOKENS = ((1, 2, 3, 4), (5, 6, 7, 8))


def counts(steps, emitted, drafted, accepted):
    return Summary(steps=steps, emitted=emitted, drafted=drafted, accepted=accepted)


class Bench:
    """Plain decoding takes 2 s, a candidate 1 s or what ``seconds`` says of it.

    The control takes ``controls`` times as long, comparison by comparison.
    """

    def __init__(self, controls=(), tokens=TOKENS, seconds=None):
        self.now, self.made = 0.0, []
        self._controls, self._tokens, self._seconds = iter(controls), tokens, seconds or {}

    def clock(self):
        return self.now

    def _configuration(self, name, seconds, sample):
        seconds *= next(self._controls, 1.0) if name == CONTROL else 1.0

        def run():
            self.now += seconds
            return sample

        return Configuration(name=name, parts=[run])

    def plain(self, name, cell):
        texts = (counts(4, 4, [0], [0]),) * 2
        sample = Sample(tokens=TOKENS, summary=texts[0] + texts[1], texts=texts, phases=(0.0, 0.8, 0.0, 0.2))
        return self._configuration(name, 2.0, sample)

    def candidate(self, name, cell):
        if name != CONTROL:
            self.made.append(cell)
        texts = (counts(2, 4, [2, 2], [2, 0]), counts(3, 4, [3, 3], [1, 0]))
        sample = Sample(tokens=self._tokens, summary=texts[0] + texts[1], texts=texts, phases=(0.1, 0.6, 0.05, 0.05))
        return self._configuration(name, self._seconds.get(cell.way, 1.0), sample)
