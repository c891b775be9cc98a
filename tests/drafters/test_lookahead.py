"""Lookahead decoding."""

from paceline.drafters.lookahead import LookaheadDrafter
from tests.tiny import looping_target

FLOOR = 2.0


def tiny(target):
    return LookaheadDrafter()


def guessable_target():
    return looping_target()
