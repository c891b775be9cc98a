"""Small instances of the drafter ``mlp_speculator``; test_feature_drafters.py says what it must do."""

from paceline.drafters.mlp_speculator import MLPSpeculatorDrafter
from tests import tiny as models
from tests.drafters.feature_heads import fitted


def tiny(target):
    return MLPSpeculatorDrafter(head=fitted("mlp_speculator", target))


def guessable_target():
    return models.looping_target()
