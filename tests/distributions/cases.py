"""Targets and drafts that verifiers have failed on, and the warpings they are tried under. V = 3.

Degenerate distributions alone would let many wrong verifiers pass, so tables of full support that differ after every
context come first."""

import torch

from tests.tables import random_table

NEVER = -torch.inf
VOCAB = 3


def _same(*row):
    """One distribution after every context."""
    return torch.tensor(row, dtype=torch.float64).expand(VOCAB, VOCAB, VOCAB).clone()


def _without(table, token, contexts=slice(None)):
    """``table`` where ``token`` has no probability after some contexts."""
    changed = table.clone()
    changed[:, contexts, token] = NEVER
    return changed


# Name -> logits [V, V, V] of the target and of the draft.
TABLES = {
    "full support": (random_table(1), random_table(2)),
    "full support, other": (random_table(3, spread=2.0), random_table(4, spread=0.5)),
    "nearly equal": (random_table(5), random_table(5) + 0.05 * random_table(6)),
    "equal": (random_table(7), random_table(7)),
    "a token the target never gives": (_without(random_table(8), 1), random_table(9)),
    "a token the draft never gives": (random_table(10), _without(random_table(11), 2)),
    "zeros after some contexts": (_without(random_table(12), 0, 1), _without(random_table(13), 1, slice(0, 2))),
    "ties": (_same(0.0, 0.0, 0.0), _same(0.0, 0.0, -0.7)),
    "a certain target": (_same(0.0, NEVER, NEVER), random_table(14)),
    "a certain draft": (random_table(15), _same(NEVER, 0.0, NEVER)),
    "disjoint": (_same(0.3, NEVER, -0.2), _same(NEVER, 0.0, NEVER)),
}
WARPS = {
    "plain": dict(temperature=1.0),
    "hot": dict(temperature=1.7),
    "top-k": dict(temperature=0.6, top_k=2),
    "top-p": dict(temperature=1.3, top_p=0.7),
}
# Enumerated in every run of the suite; the rest in `make distributions`.
FEW = ("full support", "zeros after some contexts")
