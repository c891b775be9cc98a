"""The learning rate of a step. Knows nothing else."""

import math

from paceline.train.config import ScheduleSection


def factor(schedule: ScheduleSection, step: int) -> float:
    """What the learning rate of ``step`` is multiplied with: a linear warm-up times a cosine from 1 to the floor."""
    rising = min(1.0, (step + 1) / schedule.warmup) if schedule.warmup else 1.0
    cosine = 0.5 * (1 + math.cos(math.pi * step / schedule.steps))
    return rising * (schedule.floor + (1 - schedule.floor) * cosine)
