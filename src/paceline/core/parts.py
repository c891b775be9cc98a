"""What keeps the texts, makes the noise and counts: plain tensor operations, or what gives the same in less time."""

from dataclasses import dataclass, field

from paceline.core.batch import Batch
from paceline.core.noise import Noise, Philox
from paceline.core.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a decoder that have nothing to do with models; the defaults run everywhere."""

    noise: Noise = field(default_factory=Philox)
    batch: type[Batch] = Batch
    stats: type[Stats] = Stats
