"""Every verifier that promises the target's distribution, under options that make it depend on the whole sequence:
chains and trees.
"""

import pytest

from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.verifiers import VERIFIERS
from tests.distributions.cases import TABLES
from tests.distributions.exact import distance, output_distribution, target_distribution
from tests.distributions.ledger import note
from tests.distributions.processed import OPTIONS
from tests.distributions.test_chains import BOUND, DRAWS, drafters, verifiers
from tests.distributions.test_grown import SHAPES as GROWN
from tests.distributions.trees import PATHS, SHAPES, TableTrees
from tests.tables import TableLM

FULL = "full support"
HARD = (FULL, "zeros after some contexts")


def given(options):
    """With the temperature that a distribution needs."""
    return {"temperature": 1.0, **options}


def check(found, target, length, options, **facts):
    error = distance(found.distribution, target_distribution(target, length, options))
    note(rows=found.num_rows, error=error, **facts)
    assert abs(found.weight - 1) < 1e-9
    assert error <= BOUND


def chains():
    for name, kind in verifiers():
        for drafter, draw in DRAWS.items():
            for table in HARD if draw in kind.wants else ():
                for option in OPTIONS:
                    for k, steps in ((1, 2), (2, 2), (3, 1)):
                        few = (table, k, steps) == (FULL, 2, 2) and drafter == (
                            "iid" if Draw.IID in kind.wants else "argmax"
                        )
                        label = f"{name}-{drafter}-{table}-{option}-{k}x{steps}".replace(" ", "_")
                        marks = [] if few else [pytest.mark.slow]
                        yield pytest.param(name, drafter, table, option, k, steps, marks=marks, id=label)


@pytest.mark.each_value
@pytest.mark.parametrize(("verifier", "drafter", "table", "option", "k", "steps"), list(chains()))
def test_the_distribution_over_chains_is_the_targets(verifier, drafter, table, option, k, steps):
    (target, draft), options = TABLES[table], given(OPTIONS[option])
    found = output_distribution(
        target=target, drafter=drafters(draft)[drafter], verifier=VERIFIERS.find(verifier), k=k, steps=steps, **options
    )
    check(found, target, steps * (k + 1), options, verifier=verifier, tree="chain", draw=DRAWS[drafter].name.lower())


def trees(shapes, few_shape):
    for name, kind in verifiers():
        for draw in (Draw.IID, Draw.NO_REPLACEMENT, Draw.FIXED):
            if not kind.branches or draw not in kind.wants:
                continue
            for shape in [shape for shape in shapes if name != "spectr" or shape in PATHS]:
                for table in HARD:
                    for option in OPTIONS:
                        few = table == FULL and shape == few_shape
                        if name == "spectr":  # whose two paths take seconds
                            few = table == FULL and shape == "two paths" and option in ("all", "late tokens")
                        label = f"{name}-{draw.name.lower()}-{shape}-{table}-{option}".replace(" ", "_")
                        marks = [] if few else [pytest.mark.slow]
                        yield pytest.param(name, draw, shape, table, option, marks=marks, id=label)


@pytest.mark.each_value
@pytest.mark.parametrize(("verifier", "draw", "shape", "table", "option"), list(trees(GROWN, "last deep")))
def test_the_distribution_over_grown_trees_is_the_targets(verifier, draw, shape, table, option):
    (target, draft), options, topology = TABLES[table], given(OPTIONS[option]), Topology(GROWN[shape])
    found = output_distribution(
        target=target,
        drafter=lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({draw}), shape=topology),
        verifier=VERIFIERS.find(verifier),
        k=topology.depth,
        steps=2,
        **options,
    )
    facts = dict(verifier=verifier, tree=f"grown, {shape}", draw=draw.name.lower())
    check(found, target, 2 * (topology.depth + 1), options, **facts)


@pytest.mark.parametrize(("verifier", "draw", "shape", "table", "option"), list(trees(SHAPES, "two")))
def test_the_distribution_over_trees_that_know_no_options_is_the_targets(verifier, draw, shape, table, option):
    """Their tokens come from the draft's distribution as it is, so verifiers meet tokens that the target may not
    give.
    """
    (target, draft), options = TABLES[table], given(OPTIONS[option])
    depth = TableTrees(draft, SHAPES[shape], draw).depth
    found = output_distribution(
        target=target,
        drafter=lambda: TableTrees(draft, SHAPES[shape], draw),
        verifier=VERIFIERS.find(verifier),
        k=depth,
        steps=1,
        **options,
    )
    check(found, target, depth + 1, options, verifier=verifier, tree=shape, draw=draw.name.lower())
