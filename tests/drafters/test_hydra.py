"""Small instances of the drafter ``hydra``; test_feature_drafters.py says what it must do."""

from paceline.drafters.hydra import HydraDrafter
from tests import tiny as models
from tests.drafters.feature_heads import fitted


def tiny(target):
    return HydraDrafter(head=fitted("hydra", target, noise=0.05))  # accepted lengths of every kind


def guessable_target():
    return models.looping_target()
