"""What a run trains: a next-token model, a draft model, or draft heads beside a target."""

from paceline.train.tasks.base import StepRandomness, Task, TaskOutput
from paceline.train.tasks.draft_heads import DraftHeadTask, TrainedHead
from paceline.train.tasks.models import Distillation, NextToken, next_token_output

__all__ = [
    "Distillation",
    "DraftHeadTask",
    "NextToken",
    "StepRandomness",
    "Task",
    "TaskOutput",
    "TrainedHead",
    "next_token_output",
]
