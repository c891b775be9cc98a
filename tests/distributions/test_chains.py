"""Every verifier that promises the target's distribution, over chains: the distribution of one block and of two, to
1e-12.
"""

import pytest
import torch

from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.drafters.model import ModelDrafter
from paceline.verifiers import VERIFIERS
from tests.distributions.cases import FEW, TABLES, WARPS
from tests.distributions.exact import distance, output_distribution, target_distribution
from tests.distributions.ledger import note
from tests.tables import TableLM

BOUND = 1e-12


class Guess(StatelessDrafter):
    """Fixed choices that depend on the root."""

    draws = frozenset({Draw.FIXED})

    def propose(self, batch, plan):

        root = batch.root[:, None]
        drafts = (root + 1 + torch.arange(plan.num_draft_tokens) % 2) % 3
        room = torch.arange(plan.num_draft_tokens) < batch.draft_room[:, None]
        valid = torch.cat((batch.active[:, None], room & batch.active[:, None]), dim=1)
        return Tree.make_chain(torch.cat((root, drafts), dim=1), valid)


def drafters(draft):
    """Name -> a maker of drafters, one for each draw that chains have."""
    return {
        "iid": lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({Draw.IID})),
        "argmax": lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({Draw.FIXED})),
        "guess": Guess,
    }


DRAWS = {"iid": Draw.IID, "argmax": Draw.FIXED, "guess": Draw.FIXED}


def verifiers():
    """Verifiers that promise the distribution and not the tokens; those that promise tokens are proved by equality."""
    found = [(name, VERIFIERS.find(name)) for name in VERIFIERS.builtin]
    return [(name, kind) for name, kind in found if kind.lossless and not kind.same_tokens]


def cases():
    for name, kind in verifiers():
        for drafter, draw in DRAWS.items():
            if draw not in kind.wants:
                continue
            for table in TABLES:
                for warp in WARPS:
                    for k, steps in ((1, 1), (1, 2), (2, 2), (3, 1), (3, 2)):
                        few = table in FEW and warp in ("plain", "top-k") and (k, steps) in ((1, 2), (2, 2), (3, 1))
                        marks = [] if few and drafter != "guess" else [pytest.mark.slow]
                        label = f"{name}-{drafter}-{table}-{warp}-{k}x{steps}".replace(" ", "_")
                        yield pytest.param(name, drafter, table, warp, k, steps, marks=marks, id=label)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("verifier", "drafter", "table", "warp", "k", "steps"), list(cases()))
def test_the_distribution_is_the_targets(verifier, drafter, table, warp, k, steps):
    target, draft = TABLES[table]
    found = output_distribution(
        target=target,
        drafter=drafters(draft)[drafter],
        verifier=VERIFIERS.find(verifier),
        k=k,
        steps=steps,
        **WARPS[warp],
    )
    error = distance(found.distribution, target_distribution(target, steps * (k + 1), WARPS[warp]))
    note(verifier=verifier, tree="chain", draw=DRAWS[drafter].name.lower(), rows=found.num_rows, error=error)
    assert abs(found.weight - 1) < 1e-9
    assert error <= BOUND
