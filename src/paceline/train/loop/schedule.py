"""The learning rate schedule."""

import math

from paceline.train.loop.config import ScheduleSection


def learning_rate_factor(schedule: ScheduleSection, step: int) -> float:
    """The factor of the learning rate in ``step``: a linear warm-up times a cosine from 1 to the floor."""
    warmup = min(1.0, (step + 1) / schedule.warmup) if schedule.warmup else 1.0
    cosine = 0.5 * (1 + math.cos(math.pi * step / schedule.steps))
    return warmup * (schedule.floor + (1 - schedule.floor) * cosine)
