"""LMs that follow a script: the token at a position does not depend on the tokens before it.

With a draft model that errs at chosen positions, tests can choose the accepted lengths.
"""

from functools import cache

import torch

from paceline.api import Loaded
from paceline.core.cache import SlotCache
from paceline.drafters.model import ModelDrafter
from paceline.models.base import LogitsFor, Output
from paceline.models.wrapped import DecoderOnly
from paceline.text.tokenizer import load_tokenizer
from tests.api.checkpoints import VOCAB, pair

EMOJI = "\N{GRINNING FACE}"
TEXT = f"def add(é, 日本):\n    return héé→日 + {EMOJI}{EMOJI}\nfor item in items: print(é)\n"


class Script(DecoderOnly):
    """Gives ``tokens[p + 1]`` after position p, with a probability of nearly 1."""

    max_slots = None
    num_layers = 1
    slot_bytes = 16
    device = torch.device("cpu")

    def __init__(self, tokens, vocab_size=VOCAB, max_positions=256):
        self.tokens = torch.tensor([*tokens, *[1] * (max_positions + 64)])
        self.vocab_size, self.max_positions = vocab_size, max_positions

    def new_cache(self, rows, capacity):
        return SlotCache(
            num_layers=1, rows=rows, capacity=capacity, num_kv_heads=1, head_dim=1, dtype=torch.float64, device="cpu"
        )

    def __call__(self, tree, cache, *, start=0, taps=(), logits_for=LogitsFor.ALL, resume=None, last_states=None):
        if logits_for is LogitsFor.NONE:
            return Output(None, {})
        following = self.tokens[cache.length[:, None] + tree.depth[:, start:] + 1]
        logits = 60.0 * torch.nn.functional.one_hot(following, self.vocab_size).double()
        if logits_for is LogitsFor.LAST:
            last = (tree.valid[:, start:].sum(-1) - 1).clamp(min=0)
            logits = logits.gather(1, last[:, None, None].expand(-1, 1, self.vocab_size))
        return Output(logits, {})


@cache
def tokenizer():
    return load_tokenizer(pair().target)


@cache
def script():
    """Token ids of TEXT; characters beyond ASCII take a token per byte."""
    return tuple(tokenizer().encode(TEXT))


def target(tokens=None, *, eos=()):
    """A model that gives ``tokens``, by default the ids of TEXT, for any prompt."""
    lm = Script(script() if tokens is None else tokens)
    return Loaded(lm=lm, tokenizer=tokenizer(), eos=eos, name="script", dtype=torch.float64, config={})


def draft(errs, tokens=None):
    """A draft model of the same script, wrong at the positions p with ``errs(p)``."""
    tokens = script() if tokens is None else tokens
    return ModelDrafter(lm=Script([2 if errs(at) else token for at, token in enumerate(tokens)]))


# Drafts by name; together they make every token of the script accepted at every depth, a correction and a bonus.
DRAFTS = {
    "none right": lambda at: True,
    "all right": lambda at: False,
    **{f"every third wrong from {first}": lambda at, first=first: at % 3 == first for first in range(3)},
    **{f"every seventh wrong from {first}": lambda at, first=first: at % 7 == first for first in (1, 4)},
}
