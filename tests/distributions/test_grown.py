"""Trees that a draft model grows, under every verifier: warped like the target, over two steps."""

import pytest

from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.verifiers import VERIFIERS
from tests.distributions.cases import TABLES, WARPS
from tests.distributions.exact import distance, output_distribution, target_distribution
from tests.distributions.ledger import note
from tests.distributions.test_chains import BOUND, verifiers
from tests.tables import TableLM

SHAPES = {
    "two": ((0,), (1,)),
    "first deep": ((0,), (1,), (0, 0)),
    "last deep": ((0,), (1,), (1, 0)),
    "two paths": ((0,), (1,), (0, 0), (1, 0)),
    "fork late": ((0,), (0, 0), (0, 1)),
}
PATHS = ("two", "two paths")


def cases():
    for name, kind in verifiers():
        for draw in (Draw.IID, Draw.NO_REPLACEMENT, Draw.FIXED):
            if not kind.branches or draw not in kind.wants:
                continue
            for shape in PATHS if name == "spectr" else SHAPES:
                for table in TABLES:
                    for warp in WARPS:
                        few = table == "zeros after some contexts" and warp == "top-k" and shape != "two paths"
                        marks = [] if few else [pytest.mark.slow]
                        label = f"{name}-{draw.name.lower()}-{shape}-{table}-{warp}".replace(" ", "_")
                        yield pytest.param(name, draw, shape, table, warp, marks=marks, id=label)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("verifier", "draw", "shape", "table", "warp"), list(cases()))
def test_the_distribution_is_the_targets(verifier, draw, shape, table, warp):
    target, draft = TABLES[table]
    topology = Topology(SHAPES[shape])
    found = output_distribution(
        target=target,
        drafter=lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({draw}), shape=topology),
        verifier=VERIFIERS.find(verifier),
        k=topology.depth,
        steps=2,
        **WARPS[warp],
    )
    error = distance(found.distribution, target_distribution(target, 2 * (topology.depth + 1), WARPS[warp]))
    note(verifier=verifier, tree=f"grown, {shape}", draw=draw.name.lower(), rows=found.num_rows, error=error)
    assert abs(found.weight - 1) < 1e-9
    assert error <= BOUND
