"""The law under a grammar is that of plain decoding under it, for every rule that promises the law, by enumeration."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from paceline.core.plan import Fixed
from paceline.core.tree import Draw
from paceline.decode import Decoder
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.verifiers import VERIFIERS
from tests.constraints.regular import Language, calling, follows
from tests.distributions.cases import TABLES
from tests.distributions.enumerator import Enumerator, Frontier, expand
from tests.distributions.exact import PROMPT, merge
from tests.distributions.test_chains import BOUND, verifiers
from tests.distributions.trees import SHAPES, TableTrees
from tests.harness import request
from tests.tables import TableLM, random_table

# A state that forces its token, states that forbid one, and a memory longer than the table's.
LANGUAGE = Language(({0: 0, 1: 1, 2: 2}, {0: 0, 2: 2}, {0: 2, 1: 3}, {2: 0}), size=3)


def tilted(tokens, logits):
    """A processor whose logits depend on the whole text."""
    logits[int(tokens.sum()) % 3] -= 1.5
    return logits


# Four tokens, of which one is forbidden after each: three siblings may lose one, and which one says something.
WIDE = Language(({0: 0, 1: 1, 2: 2}, {0: 0, 2: 2, 3: 0}, {0: 1, 1: 3, 3: 2}, {1: 0, 2: 3, 3: 1}), size=4)


def naive_distribution(target, text, *, grammar, tilt):
    """The law of the token after PROMPT and ``text``."""
    whole = [*PROMPT, *text]
    scores = target[whole[-2], whole[-1]].clone()
    if tilt:
        scores = tilted(torch.tensor(whole), scores)
    if grammar is not None:
        barred = sorted(set(range(grammar.size)) - set(follows(grammar, text)))
        scores[barred] = -torch.inf
    return scores.softmax(-1)


def found_distribution(*, target, drafter, verifier, k, steps, grammar=LANGUAGE, tilt=False):
    """Weight by text of the tokens that ``steps`` steps give, and the expected accepted ones of the first."""
    asked = (*((grammar,) if grammar is not None else ()), *((calling(tilted),) if tilt else ()))
    scripts, weights, done, accepted = [], torch.ones(1, dtype=torch.float64), 0, 0.0
    while True:
        room = steps * (k + 1) + k + 2
        decoder = Decoder(
            target=TableLM(target),
            drafter=drafter(),
            verifier=verifier(),
            plan=Fixed(k),
            rows=len(weights),
            max_length=len(PROMPT) + room,
            noise=Enumerator(scripts),
        )
        one = replace(request(list(PROMPT), max_tokens=room, temperature=1.0), rules=asked)
        decoder.admit([one] * len(weights), range(len(weights)))
        try:
            for step in range(steps):
                decoder.step()
                assert not decoder.constraints.failures
                if step == 0:
                    accepted = float((weights * torch.tensor(decoder.results().num_accepted)).sum())
                if step == done and step + 1 < steps:
                    rows, weights = merge(decoder, weights)
                    scripts, done = [outcomes[rows] for outcomes in scripts], done + 1
                    break
            else:
                found = defaultdict(float)
                for row, weight in enumerate(weights.tolist()):
                    found[tuple(decoder.batch.tokens[row, len(PROMPT) : decoder.batch.length[row]].tolist())] += weight
                return found, accepted
        except Frontier as frontier:
            rows, weights, outcomes = expand(weights, frontier)
            scripts = [*(before[rows] for before in scripts), outcomes]


def distance(found, target, length, **options):
    """Total variation of the first ``length`` tokens; what is missing of a text is drawn from the naive law."""
    wanted, probs = {(): 1.0}, {}
    reached = defaultdict(float)

    def distribution(text):
        if text not in probs:
            probs[text] = naive_distribution(target, text, **options).tolist()
        return probs[text]

    for _ in range(length):
        wanted = {(*t, x): w * p for t, w in wanted.items() for x, p in enumerate(distribution(t)) if p > 0}
    for text, weight in found.items():
        open_ = {text[:length]: weight}
        for _ in range(length - len(text)):
            open_ = {(*t, x): w * p for t, w in open_.items() for x, p in enumerate(distribution(t)) if p > 0}
        for whole, share in open_.items():
            reached[whole] += share
    return sum(abs(wanted.get(text, 0.0) - reached[text]) for text in {*wanted, *reached}) / 2


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
def test_the_distribution_is_that_of_plain_decoding_under_a_processor_that_reads_the_whole_text(verifier, grammar):
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
    """How many siblings are left depends on which they are, and no rule may learn from that."""
    for seed, shape in ((1, "three"), (2, "three"), (3, "last deep")):
        target, draft = random_table(seed, vocab=4), random_table(seed + 10, vocab=4, spread=2.0)
        drafter, depth = made(draw, shape, draft)
        found, accepted = found_distribution(
            target=target, drafter=drafter, verifier=VERIFIERS.find(verifier), k=depth, steps=1, grammar=WIDE
        )
        assert distance(found, target, depth + 1, grammar=WIDE, tilt=False) <= BOUND
        assert accepted > 0


@pytest.mark.parametrize("verifier", ["rejection", "block", "recursive", "traversal", "spectr"])
def test_the_distribution_is_the_same_where_text_is_drafted_that_need_not_come(verifier):
    target, draft = TABLES["full support"]
    for urges in (1, 2):
        grammar = Language(LANGUAGE.moves, size=3, urges=urges)
        found, _ = found_distribution(
            target=target,
            drafter=lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({Draw.IID})),
            verifier=VERIFIERS.find(verifier),
            k=2,
            steps=2,
            grammar=grammar,
        )
        assert distance(found, target, 6, grammar=grammar, tilt=False) <= BOUND


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
