"""A file with drafters of a user's own, and one beside it that it imports."""

import sys
from contextlib import contextmanager

CODE = '''
from beside import LENGTH
from paceline.drafters.base import StatelessDrafter
from paceline.drafters.host import HostDrafter
from paceline.drafters.ngram import NgramDrafter

class Repeat(HostDrafter):
    """Proposes the last tokens again."""

    def __init__(self, *, period: int = LENGTH, name: str = "x"):
        if period < 1:
            raise ValueError(f"period={period}: give at least 1")
        self.period = period

    def propose(self, sequences, num_draft_tokens):
        return {row: tokens[-self.period :][:num_draft_tokens] for row, tokens in sequences.items()}

class Needs(Repeat):
    def __init__(self, *, size: int):
        super().__init__(period=size)

class Incomplete(StatelessDrafter):
    pass

class Other:
    pass

def for_target(target, size=2):
    return NgramDrafter(max_ngram=size, min_ngram=min(size, target.lm.num_layers))

def nothing():
    return None

ready = Repeat(period=5)
number = 5
'''


@contextmanager
def written(folder):
    """own.py and beside.py in ``folder``."""
    (folder / "own.py").write_text(CODE)
    (folder / "beside.py").write_text("LENGTH = 3\n")
    yield
    sys.modules.pop("beside", None)
