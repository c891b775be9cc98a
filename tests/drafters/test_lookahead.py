"""Lookahead decoding: the window, the pool, and nodes that are scored and not verified."""

from dataclasses import replace

import pytest
import torch

from paceline.api.named import read_named
from paceline.drafters import DRAFTERS
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.models.backend import fastest
from tests import tiny as models
from tests.harness import Alternating, PerRow, decoder_for, expected, finish, request, run, serve_in_turn

FLOOR = 2.4  # mean acceptance length on the conformance prompts, greedy
LEARNS = True  # its drafts depend on the steps that it took part in
PROMPTS = ([5, 9, 2], [1], [8] * 6, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [60, 0], [17, 4, 33, 17, 4])
TREE = dict(paths=3, guesses=3)


def tiny(target):
    return LookaheadDrafter()


def guessable_target():
    return models.looping_target()


def greedy(count=6, max_tokens=40):
    return [request(prompt, max_tokens=max_tokens - i) for i, prompt in enumerate(PROMPTS[:count])]


def sampled(count=6, max_tokens=40, **options):
    options = dict(temperature=1.0) | options
    return [request(p, max_tokens=max_tokens - i, seed=i, **options) for i, p in enumerate(PROMPTS[:count])]


class Naive:
    """One row in lists: ``likeliest`` gives the token after a sequence."""

    def __init__(self, likeliest, prompt, *, window, ngram, guesses, from_prompt):
        self.likeliest, self.window, self.ngram, self.guesses = likeliest, window, ngram, guesses
        last = [prompt[at % len(prompt)] for at in range(len(prompt) - (ngram - 1) * window, len(prompt))]
        self.levels = [last[at : at + window] for at in range(0, len(last), window)]
        self.pool, self.age = {}, 0
        for at in range(len(prompt) - ngram + 1 if from_prompt else 0):
            self.keep(prompt[at : at + ngram])

    def keep(self, ngram):
        held = self.pool.setdefault(ngram[0], [])
        if ngram[1:] in held:
            held.remove(ngram[1:])
        held.append(ngram[1:])
        del held[: -self.guesses]

    def draft(self, root, depth):
        drafted = []
        while len(drafted) < depth and root in self.pool:
            drafted += self.pool[root][-1]
            root = drafted[-1]
        return drafted[:depth]

    def step(self, sequence):
        """The window's part of a step that begins with ``sequence``, its root last."""
        first = [sequence[-1], *self.levels[0][1:]]
        columns = []
        for at in range(self.window):
            rest = [level[at] for level in self.levels[1:]]
            columns.append([first[at], *rest, self.likeliest([*sequence[:-1], *first[: at + 1], *rest])])
        if self.age >= self.ngram - 2:
            for column in columns:
                self.keep(column)
        self.levels = [list(level) for level in zip(*columns, strict=True)][1:]
        self.age += 1


def likeliest_of(model):
    return lambda sequence: int(model(torch.tensor([sequence])).logits[0, -1].argmax())


def pool_of(drafter, row):
    """What the drafter keeps of a row, as Naive has it."""
    found = {}
    for held in drafter.pool.held[row].tolist():
        for at in range(0, len(held), drafter.ngram):
            if held[at] >= 0:
                found.setdefault(held[at], []).append(held[at + 1 : at + drafter.ngram])
    return found


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize("from_prompt", [True, False])
@pytest.mark.parametrize("sizes", [dict(window=3, ngram=4, guesses=2), dict(window=4, ngram=3, guesses=1)])
@pytest.mark.parametrize("looping", [False, True])
def test_window_and_pool_are_those_of_lists(looping, sizes, from_prompt):
    """Step by step, in ragged rows of which one samples: the draft before the step, the window and the pool after."""
    model, target = models.looping_target() if looping else models.target()
    drafter = LookaheadDrafter(from_prompt=from_prompt, **sizes)
    decoder = decoder_for(drafter, "coupled", target=target, k=5, rows=3)
    prompts = [PROMPTS[3], PROMPTS[1], PROMPTS[5]]
    decoder.admit(
        [request(p, max_tokens=40, temperature=float(i == 2), seed=3) for i, p in enumerate(prompts)], [2, 0, 1]
    )
    rows = dict(zip([2, 0, 1], prompts, strict=True))
    known = {row: Naive(likeliest_of(model), p, from_prompt=from_prompt, **sizes) for row, p in rows.items()}
    batch, plan = decoder.batch, decoder.plan()
    for _ in range(9):
        before = {row: batch.tokens[row, : batch.length[row]].tolist() for row in rows}
        decoder.begin_step(plan)
        tree = decoder.draft(plan)
        for row, one in known.items():
            assert tree.tokens[row, 1:][tree.valid[row, 1:]].tolist() == one.draft(before[row][-1], 5)
        scores = decoder.score(tree)
        decoder.observe(tree, decoder.decide(tree, scores), scores)
        for row, one in known.items():
            one.step(before[row])
            assert drafter.columns[row].tolist() == one.levels
            assert pool_of(drafter, row) == one.pool


def test_what_the_target_guesses_ahead_is_accepted():
    """Nothing comes from the prompts here: a sequence that repeats itself is drafted from the window alone."""
    model, target = models.looping_target()
    result = run(LookaheadDrafter(from_prompt=False), "coupled", greedy(), target=target, k=3)
    assert result.texts == [expected(r, model) for r in greedy()]
    assert result.summary.mean_acceptance_length > FLOOR and result.summary.acceptance_rate > 0.8


def test_the_prompt_is_drafted_from_too():
    """From the first step on, before the window has given anything."""
    model, target = models.looping_target()
    prompt = [2, *expected(request([2], max_tokens=60), model)]
    for from_prompt, accepted in ((True, 3), (False, 0)):
        decoder = decoder_for(LookaheadDrafter(from_prompt=from_prompt), "coupled", target=target, k=3)
        decoder.admit([request(prompt, max_tokens=20)], [0])
        decoder.step()
        assert decoder.results().num_accepted == [accepted]


@pytest.mark.parametrize("verifier", ["coupled", "match", "recursive", "traversal"])
def test_trees_of_guesses(verifier):
    """Under verifiers for trees; where its tokens are those of plain decoding, with sampling too."""
    model, target = models.looping_target()
    one = run(LookaheadDrafter(), verifier, greedy(), target=target, k=3)
    tree = run(LookaheadDrafter(**TREE), verifier, greedy(), target=target, k=3)
    assert tree.texts == one.texts == [expected(r, model) for r in greedy()]
    assert tree.summary.mean_acceptance_length >= one.summary.mean_acceptance_length > FLOOR
    if verifier in ("coupled", "match"):
        requests = sampled(temperature=0.8)
        result = run(LookaheadDrafter(**TREE), verifier, requests, k=4)
        assert result.texts == [expected(r) for r in requests]


@torch.inference_mode()
def test_guesses_with_one_beginning_share_its_nodes():
    drafter = LookaheadDrafter(paths=3, guesses=4)
    decoder = decoder_for(drafter, "coupled", k=3, rows=2)
    decoder.admit(
        [request([7, 1, 2, 3, 7, 1, 5, 6, 7, 4, 4, 4, 7], max_tokens=20), request([9, 9], max_tokens=20)], [0, 1]
    )
    tree = decoder.draft(decoder.plan())
    paths = {}
    for row in range(2):
        nodes = [node for node in range(tree.num_nodes) if tree.valid[row, node]]
        for node in nodes[1:]:
            assert tree.valid[row, tree.parents[row, node]]
        paths[row] = {tuple(tree.tokens[row, tree.ancestors[row, node]].tolist()) for node in nodes}
        assert len(paths[row]) == len(nodes), "no two nodes have the same path"
    assert paths[1] == {(9,)}
    assert paths[0] == {(7,), (7, 4), (7, 4, 4), (7, 4, 4, 4), (7, 1), (7, 1, 5), (7, 1, 5, 6), (7, 1, 2), (7, 1, 2, 3)}


@pytest.mark.parametrize("options", [{}, TREE], ids=["chain", "tree"])
def test_nobody_sees_the_window_but_the_target(options):
    """Tree, scores, counts and the cache have the draft's nodes alone."""
    _, target = models.looping_target()
    calls = []

    class Counted:
        def __getattr__(self, name):
            return getattr(target, name)

        def __call__(self, tree, cache, **given):
            calls.append(tree.num_nodes)
            return target(tree, cache, **given)

    drafter = LookaheadDrafter(window=5, ngram=4, **options)
    decoder = decoder_for(drafter, "coupled", target=Counted(), k=3, rows=2)
    decoder.admit(greedy(2), [0, 1])
    calls.clear()
    seen = []
    verifier = decoder.verifier

    def watching(tree, scores, batch):
        seen.append((tree.num_nodes, scores.logits.shape[1], scores.raw_logits.shape[1], tree.max_depth))
        return verifier(tree, scores, batch)

    decoder.verifier = watching
    result = finish(decoder, rows=[0, 1], prompts=PROMPTS[:2])
    nodes = 1 + 3 * options.get("paths", 1)
    assert set(seen) == {(nodes, nodes, nodes, 3)}
    assert set(calls) == {nodes + 14} and drafter.num_unverified == 14 and drafter.max_nodes(3) == nodes + 14
    assert all(drafted <= nodes - 1 for report in result.reports for drafted in report.num_drafted)
    assert result.summary.drafted[0] <= result.summary.steps


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@torch.inference_mode()
def test_the_draft_is_scored_as_without_a_window(dtype):
    """Bit for bit by the CPU kernel."""
    target = fastest(models.native(models.llama(5, dtype=dtype)))
    drafter = LookaheadDrafter()
    decoder = decoder_for(drafter, "coupled", target=target, k=3, rows=3)
    decoder.admit(greedy(3), range(3))
    for _ in range(6):
        tree = decoder.draft(decoder.plan())
        alone = decoder.score(replace(tree, unverified=None))
        scores = decoder.score(tree)
        assert scores.unverified is not None and alone.unverified is None
        assert (scores.logits.equal(alone.logits) and scores.raw_logits.equal(alone.raw_logits)) or not hasattr(
            target, "isa"
        )
        decoder.observe(tree, decoder.decide(tree, scores), scores)


@torch.inference_mode()
def test_a_step_without_a_draft_has_no_window_and_keeps_it():
    calls, (_, target) = [], models.looping_target()

    class Counted:
        def __getattr__(self, name):
            return getattr(target, name)

        def __call__(self, tree, cache, **given):
            calls.append(tree.num_nodes)
            return target(tree, cache, **given)

    drafter = LookaheadDrafter()
    decoder = decoder_for(drafter, "coupled", target=Counted(), plan=Alternating(3, 0, 3), rows=1)
    decoder.admit(greedy(1), [0])
    calls.clear()
    decoder.step()
    held = [one.clone() for one in (drafter.columns, drafter.age, drafter.pool.held)]
    decoder.step()
    assert calls == [4 + 14, 1]
    assert all(map(torch.equal, held, (drafter.columns, drafter.age, drafter.pool.held)))
    decoder.step()
    assert int(drafter.age[0]) == 2 and not drafter.columns.equal(held[0])


def test_rows_that_are_not_drafted_for_keep_their_windows():
    """By their request, by the plan, and where one token is left."""
    drafter, (model, target) = LookaheadDrafter(), models.looping_target()
    requests = [request([5, 9, 2], max_tokens=20, num_draft_tokens=0), *greedy(3, max_tokens=20)[1:]]
    plan = PerRow(lambda row, tokens: 0 if row == 1 else 3, 3)
    decoder = decoder_for(drafter, "coupled", target=target, plan=plan, rows=3)
    plan.batch = decoder.batch
    decoder.admit(requests, [0, 1, 2])
    begun = [one.clone() for one in (drafter.columns, drafter.age, drafter.pool.held)]
    result = finish(decoder, rows=[0, 1, 2], prompts=[r.tokens for r in requests])
    assert result.texts == [expected(r, model) for r in requests]
    for before, after in zip(begun, (drafter.columns, drafter.age, drafter.pool.held), strict=True):
        assert before[:2].equal(after[:2]) and not before[2].equal(after[2])


def test_a_row_keeps_nothing_of_its_former_request():
    """Its window and pool are those of a fresh decoder, so what is drafted tells nothing of another request."""
    used, fresh = LookaheadDrafter(), LookaheadDrafter()
    decoders = [decoder_for(one, "coupled", k=3, rows=2) for one in (used, fresh)]
    decoders[0].admit(sampled(2), [0, 1])
    finish(decoders[0], rows=[0, 1], prompts=PROMPTS[:2])
    beside = used.pool.held[0].clone()
    for decoder in decoders:
        decoder.release([1])
        decoder.admit([request(PROMPTS[3], max_tokens=20)], [1])
    assert used.pool.held[1].equal(fresh.pool.held[1]) and used.columns[1].equal(fresh.columns[1])
    assert int(used.age[1]) == 0 and used.pool.held[0].equal(beside) and bool((beside >= 0).any())
    queue = [*greedy(4, max_tokens=16), *sampled(4, max_tokens=14)]
    assert serve_in_turn(decoder_for(tiny(None), "coupled", k=3, rows=2), queue) == [expected(r) for r in queue]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(window=0), "window=0: give at least 1"),
        (dict(ngram=2), "ngram=2: give at least 3"),
        (dict(guesses=0), "guesses=0: give at least 1"),
        (dict(paths=5), "paths=5: give 1"),
        (dict(paths=0), "paths=0: give 1"),
        (dict(window=300), r"window=300, ngram=4: .*900 nodes in every step; give 512 at most"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LookaheadDrafter(**options)


def test_made_by_name():
    made = read_named(DRAFTERS, "lookahead:window=6,ngram=5,guesses=3,paths=2,from_prompt=false").make()
    assert isinstance(made, LookaheadDrafter) and made.branches
    assert (made.window, made.ngram, made.guesses, made.paths, made.from_prompt) == (6, 5, 3, 2, False)
    assert made.max_nodes(0) == 1 and made.max_nodes(8) == 1 + 2 * 4 + 23
