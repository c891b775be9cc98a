"""The distribution under constraints equals that of plain decoding under them, for every lossless verifier, by
enumeration.
"""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.verifiers import VERIFIERS
from tests.constraints.regular import Language, calling, follows
from tests.distributions.cases import TABLES
from tests.distributions.exact import PROMPT, enumerate_steps
from tests.distributions.test_chains import BOUND, verifiers
from tests.distributions.trees import SHAPES, TableTrees
from tests.harness import request
from tests.tables import TableLM, random_table

pytestmark = pytest.mark.one_in(11)

# A state that forces its token, states that forbid one, and a memory longer than the table's.
LANGUAGE = Language(({0: 0, 1: 1, 2: 2}, {0: 0, 2: 2}, {0: 2, 1: 3}, {2: 0}), size=3)


def tilted(tokens, logits):
    """A processor whose logits depend on the whole sequence."""
    logits[int(tokens.sum()) % 3] -= 1.5
    return logits


# Four tokens, of which one is forbidden after each: three siblings may lose one, and which one says something.
WIDE = Language(({0: 0, 1: 1, 2: 2}, {0: 0, 2: 2, 3: 0}, {0: 1, 1: 3, 3: 2}, {1: 0, 2: 3, 3: 1}), size=4)


def naive_distribution(target, output, *, grammar, tilt):
    """The distribution of the token after PROMPT and ``output``."""
    whole = [*PROMPT, *output]
    scores = target[whole[-2], whole[-1]].clone()
    if tilt:
        scores = tilted(torch.tensor(whole), scores)
    if grammar is not None:
        barred = sorted(set(range(grammar.size)) - set(follows(grammar, output)))
        scores[barred] = -torch.inf
    return scores.softmax(-1)


def found_distribution(*, target, drafter, verifier, k, steps, grammar=LANGUAGE, tilt=False):
    """Probability of each output of ``steps`` steps, and the expected number of accepted tokens in the first."""
    constraints = (*((grammar,) if grammar is not None else ()), *((calling(tilted),) if tilt else ()))
    asked = request(list(PROMPT), max_tokens=steps * (k + 1) + k + 2, temperature=1.0)
    decoder, weights, accepted = enumerate_steps(
        target=target,
        drafter=drafter,
        verifier=verifier,
        k=k,
        steps=steps,
        asked=replace(asked, constraints=constraints),
    )
    found = defaultdict(float)
    for row, weight in enumerate(weights.tolist()):
        found[tuple(decoder.batch.tokens[row, len(PROMPT) : decoder.batch.length[row]].tolist())] += weight
    return found, accepted


def distance(found, target, length, **options):
    """Total variation of the first ``length`` tokens; missing ones are drawn from the naive distribution."""
    wanted, probs = {(): 1.0}, {}
    reached = defaultdict(float)

    def distribution(output):
        if output not in probs:
            probs[output] = naive_distribution(target, output, **options).tolist()
        return probs[output]

    for _ in range(length):
        wanted = {(*t, x): w * p for t, w in wanted.items() for x, p in enumerate(distribution(t)) if p > 0}
    for output, weight in found.items():
        open_ = {output[:length]: weight}
        for _ in range(length - len(output)):
            open_ = {(*t, x): w * p for t, w in open_.items() for x, p in enumerate(distribution(t)) if p > 0}
        for whole, share in open_.items():
            reached[whole] += share
    return sum(abs(wanted.get(output, 0.0) - reached[output]) for output in {*wanted, *reached}) / 2


def cases():
    for name, kind in verifiers():
        for draw in (Draw.IID, Draw.NO_REPLACEMENT, Draw.FIXED):
            if draw not in kind.wants:
                continue
            if draw is not Draw.NO_REPLACEMENT:
                yield pytest.param(name, draw, "chain", id=f"{name}-{draw.name.lower()}-chain")
            for shape in ("two", "three", "first deep", "fork late", "two paths") if kind.branches else ():
                yield pytest.param(name, draw, shape, id=f"{name}-{draw.name.lower()}-{shape}".replace(" ", "_"))


def made(draw, shape, draft):
    """A way to make the drafter, and its depth."""
    if shape == "chain":
        return (lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({draw}))), 2
    grown = TableTrees(draft, SHAPES[shape], draw)
    return (lambda: TableTrees(draft, SHAPES[shape], draw)), grown.depth


@pytest.mark.parametrize("table", ["full support", "zeros after some contexts"])
@pytest.mark.parametrize(("verifier", "draw", "shape"), list(cases()))
def test_the_distribution_is_that_of_plain_decoding_under_the_grammar(verifier, draw, shape, table):
    target, draft = TABLES[table]
    drafter, depth = made(draw, shape, draft)
    steps = 2 if shape == "chain" else 1
    found, accepted = found_distribution(
        target=target, drafter=drafter, verifier=VERIFIERS.find(verifier), k=depth, steps=steps
    )
    assert abs(sum(found.values()) - 1) < 1e-9
    assert distance(found, target, steps * (depth + 1), grammar=LANGUAGE, tilt=False) <= BOUND
    assert accepted > 0 or (verifier == "spectr" and draw is not Draw.IID)


@pytest.mark.parametrize("grammar", [None, LANGUAGE], ids=["free", "grammar"])
@pytest.mark.parametrize("verifier", ["rejection", "recursive", "traversal"])
def test_the_distribution_is_that_of_plain_decoding_under_a_processor_that_reads_the_whole_sequence(verifier, grammar):
    target, draft = TABLES["full support, other"]
    found, accepted = found_distribution(
        target=target,
        drafter=lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({Draw.IID})),
        verifier=VERIFIERS.find(verifier),
        k=2,
        steps=2,
        grammar=grammar,
        tilt=True,
    )
    assert distance(found, target, 6, grammar=grammar, tilt=True) <= BOUND
    assert accepted > 0


@pytest.mark.parametrize("draw", [Draw.IID, Draw.NO_REPLACEMENT])
@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_the_distribution_survives_whatever_siblings_are_dropped(verifier, draw):
    """The number of siblings left depends on their tokens, and no verifier may use that."""
    for seed, shape in ((1, "three"), (2, "three"), (3, "last deep")):
        target, draft = random_table(seed, vocab=4), random_table(seed + 10, vocab=4, spread=2.0)
        drafter, depth = made(draw, shape, draft)
        found, accepted = found_distribution(
            target=target, drafter=drafter, verifier=VERIFIERS.find(verifier), k=depth, steps=1, grammar=WIDE
        )
        assert distance(found, target, depth + 1, grammar=WIDE, tilt=False) <= BOUND
        assert accepted > 0


@pytest.mark.parametrize("verifier", ["rejection", "block", "recursive", "traversal", "spectr"])
def test_the_distribution_is_the_same_with_forced_tokens_that_are_not_certain(verifier):
    target, draft = TABLES["full support"]
    for forced in (1, 2):
        grammar = Language(LANGUAGE.moves, size=3, forced=forced)
        found, _ = found_distribution(
            target=target,
            drafter=lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({Draw.IID})),
            verifier=VERIFIERS.find(verifier),
            k=2,
            steps=2,
            grammar=grammar,
        )
        assert distance(found, target, 6, grammar=grammar, tilt=False) <= BOUND


@pytest.mark.slow
def test_grown_trees_of_two_steps_have_the_distribution_too():
    target, draft = TABLES["full support"]
    topology = Topology(((0,), (1,), (0, 0)))
    for verifier, draw in (("recursive", Draw.NO_REPLACEMENT), ("traversal", Draw.IID)):
        found, accepted = found_distribution(
            target=target,
            drafter=lambda draw=draw: ModelDrafter(lm=TableLM(draft), draws=frozenset({draw}), shape=topology),
            verifier=VERIFIERS.find(verifier),
            k=2,
            steps=2,
        )
        assert distance(found, target, 6, grammar=LANGUAGE, tilt=False) <= BOUND
        assert accepted > 0
