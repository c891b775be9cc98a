"""Every verifier that promises the target's distribution, over trees: siblings with and without replacement, and
fixed ones.
"""

import pytest

from paceline.core.tree import Draw
from paceline.verifiers import VERIFIERS
from tests.distributions.cases import FEW, TABLES, WARPS
from tests.distributions.exact import distance, output_distribution, target_distribution
from tests.distributions.ledger import note
from tests.distributions.test_chains import BOUND, verifiers
from tests.distributions.trees import PATHS, SHAPES, TableTrees

BIG = ("two by two", "two paths")


def cases():
    for name, kind in verifiers():
        if not kind.branches:
            continue
        for draw in (Draw.IID, Draw.NO_REPLACEMENT, Draw.FIXED):
            if draw not in kind.wants:
                continue
            for shape in PATHS if name == "spectr" else SHAPES:
                for table in TABLES:
                    for warp in WARPS:
                        for steps in (1, 2):
                            few = table in FEW and warp == "plain" and shape not in BIG and steps == 1
                            marks = [] if few else [pytest.mark.slow]
                            label = f"{name}-{draw.name.lower()}-{shape}-{table}-{warp}-{steps}".replace(" ", "_")
                            yield pytest.param(name, draw, shape, table, warp, steps, marks=marks, id=label)


@pytest.mark.parametrize(("verifier", "draw", "shape", "table", "warp", "steps"), list(cases()))
def test_the_distribution_is_the_targets(verifier, draw, shape, table, warp, steps):
    target, draft = TABLES[table]
    depth = TableTrees(draft, SHAPES[shape], draw).depth
    found = output_distribution(
        target=target,
        drafter=lambda: TableTrees(draft, SHAPES[shape], draw),
        verifier=VERIFIERS.find(verifier),
        k=depth,
        steps=steps,
        **WARPS[warp],
    )
    error = distance(found.distribution, target_distribution(target, steps * (depth + 1), WARPS[warp]))
    note(verifier=verifier, tree=shape, draw=draw.name.lower(), rows=found.num_rows, error=error)
    assert abs(found.weight - 1) < 1e-9
    assert error <= BOUND
