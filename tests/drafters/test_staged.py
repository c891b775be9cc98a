"""A draft model that a smaller drafter drafts for."""

from dataclasses import replace

import pytest
import torch

from paceline.core.admission import Prefix
from paceline.core.guidance import Guidance
from paceline.core.plan import Fixed
from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.drafters.host import HostDrafter, HostDrafting
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.staged import StagedDrafter
from paceline.engine.readers import AsyncReader, SyncReader
from paceline.engine.runner import Runner, ops_for
from paceline.engine.scheduler import Scheduler
from paceline.models.backend import fastest
from tests import tiny as models
from tests.engine.recorded import RecordedGraphs
from tests.harness import PerRow, decoder_for, expected, finish, request, run

pytestmark = pytest.mark.one_in(16)

FOLLOWS = True
FLOOR = 1.7  # mean acceptance length on the conformance prompts, greedy: that of its draft model alone


def oracle(target, scale=0.12, seed=3):
    """The target with noise on its weights."""
    return ModelDrafter(lm=models.noisy(target, scale, seed=seed))


def tiny(target):
    """Three stages: the target with noise, the same with more noise, and prompt lookup."""
    inner = StagedDrafter(draft=oracle(target, 0.2, seed=4), inner=NgramDrafter())
    return StagedDrafter(draft=oracle(target), inner=inner)


class Counted:
    """An LM that counts the forwards that have something to score, and the tokens of every row that it is given."""

    def __init__(self, lm):
        self.lm, self.num_forwards, self.num_calls, self.sizes = lm, 0, 0, []

    def __getattr__(self, name):
        return getattr(self.lm, name)

    def __call__(self, tree, cache, **options):
        self.num_calls += 1
        self.sizes.append(tree.num_nodes)
        self.num_forwards += bool(tree.valid[:, options.get("start", 0) :].any())
        return self.lm(tree, cache, **options)


PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
PENALTIES = dict(repetition_penalty=1.3, frequency_penalty=0.2, no_repeat_ngram=4, bias=(((8, 41), 2.0),))


def asked(temperature, max_tokens=40, **more):
    return [
        request(prompt, max_tokens=max_tokens - 3 * row, temperature=temperature, seed=row, **more)
        for row, prompt in enumerate(PROMPTS)
    ]


def drafts_of(drafter, requests, *, k, draws=None, parts=None, target=None):
    """Every draft by row and length of the sequence before it, and how many steps were taken."""
    decoder = decoder_for(drafter, "coupled", k=k, rows=len(requests), parts=parts, target=target)
    decoder.admit(requests, range(len(requests)))
    found, steps = {}, 0
    while bool(decoder.batch.active.any()):
        before = decoder.batch.length.tolist()
        plan = decoder.plan()
        decoder.begin_step(plan)
        with torch.inference_mode():
            tree = decoder.draft(plan)
            scores = decoder.score(tree)
            decoder.observe(tree, decoder.decide(tree, scores), scores)
        for row, length in enumerate(before):
            if tree.valid[row, 0]:
                found[row, length] = tree.tokens[row][tree.valid[row]].tolist()
        steps += 1
    return found, steps


INNER = {
    "ngram": lambda target: NgramDrafter(),
    "itself": lambda target: oracle(target),
    "another model": lambda target: ModelDrafter(lm=models.draft()),
    "the target": lambda target: ModelDrafter(lm=target),
    "staged": lambda target: StagedDrafter(draft=oracle(target, 0.2, seed=4), inner=NgramDrafter()),
    "twice staged": lambda target: StagedDrafter(
        draft=oracle(target, 0.2, seed=4), inner=StagedDrafter(draft=oracle(target, 0.1, seed=5), inner=oracle(target))
    ),
}


def inner_cases():
    """Soon: each inner drafter with a length, and two of them with all."""
    for inner in INNER:
        for k in (1, 2, 5):
            soon = k == (1 if inner == "twice staged" else 5) or inner in ("ngram", "another model")
            yield pytest.param(inner, k, marks=[] if soon else [pytest.mark.slow])


@pytest.mark.each_value
@pytest.mark.parametrize("processing", [{}, PENALTIES], ids=["free", "penalties"])
@pytest.mark.parametrize("draw", [Draw.FIXED, Draw.SHARED])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("inner", "k"), list(inner_cases()))
def test_drafts_are_those_of_the_draft_model_alone(inner, k, temperature, draw, processing):
    _, target = models.target()
    requests = asked(temperature, processing=processing)
    alone = ModelDrafter(lm=models.noisy(target, 0.12), draws=frozenset({draw}))
    draft = ModelDrafter(lm=models.noisy(target, 0.12), draws=frozenset({draw}))
    staged = StagedDrafter(draft=draft, inner=INNER[inner](target))
    assert drafts_of(staged, requests, k=k) == drafts_of(alone, requests, k=k)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [2, 5])
def test_an_inner_drafter_equal_to_the_draft_model_is_accepted_whole(k, temperature):
    """And the draft model reads each chain in as few forwards as there can be."""
    _, target = models.target()
    draft = Counted(models.noisy(target, 0.12))
    staged = StagedDrafter(draft=ModelDrafter(lm=draft), inner=oracle(target), num_inner_tokens=4)
    decoder = decoder_for(staged, "coupled", k=k, rows=1)
    decoder.admit([request([5, 9, 2], max_tokens=60, temperature=temperature, seed=3)], [0])
    while bool(decoder.batch.active[0]):
        before = draft.num_forwards
        decoder.step()
        assert draft.num_forwards - before <= 1
    ((name, stats),) = [(one.name, one.stats.summary()) for one in staged.stages]
    assert name == "model" and stats.acceptance_rate == 1.0 and sum(stats.drafted) > 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_equal_to_the_target_is_accepted_whole(temperature):
    _, target = models.target()
    staged = StagedDrafter(draft=ModelDrafter(lm=target), inner=tiny(target))
    requests = [request([7, 3, 5][: 1 + row], max_tokens=24, temperature=temperature, seed=row) for row in range(3)]
    result = run(staged, "coupled", requests, k=5)
    assert result.texts == [expected(one) for one in requests]
    assert result.steps == 4 and result.summary.acceptance_rate == 1.0
    assert len(staged.stages) == 3


@pytest.mark.parametrize("inner", ["ngram", "another model", "staged"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_kernel_drafts_what_the_draft_model_alone_drafts_in_one_call(inner, temperature):
    """Forwards end when no row has anything left to draft."""
    target = fastest(models.target()[1])
    draft = fastest(models.noisy(models.target()[1], 0.12))
    requests, parts = asked(temperature, processing=PENALTIES), dict(ops=ops_for(torch.device("cpu")))
    counted = Counted(draft)
    staged = StagedDrafter(draft=ModelDrafter(lm=counted), inner=INNER[inner](models.target()[1]))
    found, steps = drafts_of(staged, requests, k=5, parts=parts, target=target)
    assert (found, steps) == drafts_of(ModelDrafter(lm=draft), requests, k=5, parts=parts, target=target)
    assert counted.num_forwards == counted.num_calls <= 1 + 5 * steps


@pytest.mark.parametrize("most", [1, 2])
def test_bounded_forwards_leave_chains_that_begin_like_whole_ones(most):
    _, target = models.target()
    requests = asked(0.8)
    staged = StagedDrafter(draft=oracle(target), inner=NgramDrafter(), max_forwards=most)
    result = run(staged, "coupled", requests, k=5)
    assert result.texts == [expected(one) for one in requests]
    assert any(sum(report.num_accepted) for report in result.reports)
    ours, _ = drafts_of(StagedDrafter(draft=oracle(target), inner=NgramDrafter(), max_forwards=most), requests, k=5)
    alone, _ = drafts_of(oracle(target), requests, k=5)
    same = ours.keys() & alone.keys()
    assert len(same) > 10 and all(alone[at][: len(ours[at])] == ours[at] for at in same)
    assert all(len(draft) >= 1 + min(most, len(alone[at]) - 1) for at, draft in ours.items() if at in same)


WAYS = {
    "each its own": lambda row, tokens: (row + 1) % 6,
    "one or none": lambda row, tokens: (len(tokens) + row) % 2 if row % 2 else 3,
    "by its tokens": lambda row, tokens: tokens[-1] % 6,
    "off and on": lambda row, tokens: 5 if (len(tokens) + 5 * row) % 23 > 12 else 0,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("most", [None, 2])
def test_inner_drafters_read_every_token_whatever_depths_rows_have(way, most):
    """Copies of the target in all stages: a token that one of them missed would be rejected."""
    _, target = models.target()
    requests = asked(0.0) + asked(0.9)
    inner = StagedDrafter(draft=ModelDrafter(lm=target), inner=ModelDrafter(lm=target))
    staged = StagedDrafter(draft=ModelDrafter(lm=target), inner=inner, max_forwards=most)
    plan = PerRow(WAYS[way], 5)
    result = run(staged, "coupled", requests, plan=plan)
    assert result.texts == [expected(one) for one in requests]
    assert result.summary.acceptance_rate == 1.0
    for stage in staged.stages:
        counts = stage.stats.summary()
        assert sum(counts.drafted) > 20 and counts.acceptance_rate == 1.0


class Later(Fixed):
    """Plain steps first; prompts are not read for the drafter when a request begins."""

    asked = 0

    @property
    def drafts_at_once(self):
        return False

    def __call__(self):
        self.asked += 1
        return StepPlan(0) if self.asked <= 3 else self.step


@pytest.mark.parametrize("length", [1, 9, 30])
def test_prompts_that_are_read_late_are_read_whole(length):
    _, target = models.target()
    inner = StagedDrafter(draft=ModelDrafter(lm=target), inner=ModelDrafter(lm=target))
    staged = StagedDrafter(draft=ModelDrafter(lm=target), inner=inner)
    decoder = decoder_for(staged, "coupled", rows=2, plan=Later(3), max_length=80)
    decoder.admit([request([1 + at % 7 for at in range(length)], max_tokens=30), request([5, 9])], [0, 1])
    for number in range(7):
        decoder.step()
        assert decoder.results().num_accepted == ([3, 3] if number >= 3 else [0, 0])
    assert all(stage.stats.summary().acceptance_rate == 1.0 for stage in staged.stages)


def test_what_an_inner_drafter_has_missed_is_read_for_the_first_of_its_drafts_alone():
    """It drafts a token at a time here, so several times in a step."""
    _, target = models.target()
    inner = Counted(target)
    staged = StagedDrafter(
        draft=ModelDrafter(lm=target), inner=ModelDrafter(lm=inner), num_inner_tokens=1, max_forwards=2
    )
    decoder = decoder_for(staged, "coupled", rows=2, plan=Later(4), max_length=80)
    decoder.admit([request([1 + at % 7 for at in range(30)], max_tokens=30), request([5, 9])], [0, 1])
    for number in range(6):
        inner.sizes.clear()
        decoder.step()
        assert inner.sizes == [[], [], [], [64, 3, 3], [3, 3], [3, 3]][number]
    assert decoder.results().num_accepted == [4, 4]


@pytest.mark.parametrize("vocab", [models.VOCAB - 6, models.VOCAB + 6])
def test_padded_vocabularies_are_cut_or_filled_in_every_stage(vocab):
    model = models.llama(1)
    model.resize_token_embeddings(vocab, mean_resizing=False)
    requests = [request([7, 3, 60], max_tokens=30, temperature=0.5), request([60, 2, 60, 2], max_tokens=30)]
    alone = run(ModelDrafter(lm=models.native(model)), "coupled", requests, k=3)
    for inner in (ModelDrafter(lm=models.target()[1]), NgramDrafter(), ModelDrafter(lm=models.native(model))):
        staged = StagedDrafter(draft=ModelDrafter(lm=models.native(model)), inner=inner)
        result = run(staged, "coupled", requests, k=3)
        assert result.texts == [expected(one) for one in requests]
        assert result.summary == alone.summary


def serve(reader, graphs, requests, verifier="coupled"):
    decoder = decoder_for(tiny(models.target()[1]), verifier, k=4, rows=2)
    made = Scheduler(Runner(decoder, reader=reader(decoder), graphs=graphs))
    tickets = [made.submit(one) for one in requests]
    gained = {ticket: [] for ticket in tickets}
    stats = {}
    while not made.idle:
        for output in made.advance():
            assert output.error is None
            gained[output.ticket] += output.token_ids
            stats[output.ticket] = made.stats(output.ticket).stages
    assert made.runner.drafter_error is None
    return [gained[ticket] for ticket in tickets], [stats[ticket] for ticket in tickets], made.runner.num_replayed


@pytest.mark.slow
def test_recorded_steps_and_late_results_give_the_same_tokens_and_counts():
    requests = asked(0.8) + asked(0.0, max_tokens=20)
    tokens, counts, _ = serve(SyncReader, None, requests)
    assert tokens == [expected(one) for one in requests]
    assert [[stage.name for stage in stages] for stages in counts] == [["model", "ngram"]] * len(requests)
    assert serve(AsyncReader, None, requests)[:2] == (tokens, counts)
    *same, replayed = serve(SyncReader, RecordedGraphs(), requests)
    assert tuple(same) == (tokens, counts) and replayed > 10


@pytest.mark.slow
def test_recorded_steps_and_late_results_give_the_same_samples():
    requests = asked(0.8) + asked(0.0, max_tokens=20)
    tokens, counts, _ = serve(SyncReader, None, requests, "block")
    assert tokens[4:] == [expected(one) for one in requests[4:]]
    assert serve(AsyncReader, None, requests, "block")[:2] == (tokens, counts)
    *same, replayed = serve(SyncReader, RecordedGraphs(), requests, "block")
    assert tuple(same) == (tokens, counts) and replayed > 10


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["rejection", "block", "traversal"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_of_equal_models_are_accepted_whole(temperature, verifier):
    """In every stage; and the draft model reads each chain in as few forwards as there can be."""
    _, target = models.target()
    counted = Counted(target)
    inner = StagedDrafter(draft=ModelDrafter(lm=target), inner=ModelDrafter(lm=target), num_inner_tokens=5)
    staged = StagedDrafter(draft=ModelDrafter(lm=counted), inner=inner, num_inner_tokens=5)
    requests = asked(temperature)
    result = run(staged, verifier, requests, k=5)
    assert result.summary.acceptance_rate == 1.0 and result.steps == 7
    for stage in staged.stages:
        counts = stage.stats.summary()
        assert counts.acceptance_rate == 1.0 and sum(counts.drafted) > 20
    assert counted.num_forwards <= 1 + result.steps
    assert temperature or result.texts == [expected(one) for one in requests]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("halves", [False, True])
def test_samples_do_not_depend_on_how_deep_neighbours_are_drafted_for(halves, kernel):
    """With twice staged drafts, and with the bound on forwards of devices that nothing waits for."""
    _, target = models.target()
    parts = dict(ops=ops_for(torch.device("cpu"))) if kernel else None
    used = fastest(target) if kernel else target

    def texts(requests, way):
        staged = tiny(target)
        plan = PerRow(way, 5)
        decoder = decoder_for(staged, "rejection", rows=len(requests), plan=plan, target=used, parts=parts)
        plan.batch = decoder.batch
        staged._halves = staged.inner._halves = halves
        decoder.admit(requests, range(len(requests)))
        return finish(decoder, rows=list(range(len(requests))), prompts=[one.tokens for one in requests]).texts

    requests = asked(0.8, max_tokens=24)
    alone = [texts([one], lambda _, tokens: tokens[-1] % 5 + 1)[0] for one in requests]
    assert texts(requests, lambda row, tokens: tokens[-1] % 5 + 1) == alone
    assert texts(requests[:1] * 2, lambda row, tokens: 5 if row else tokens[-1] % 5 + 1)[0] == alone[0]


def test_samples_do_not_depend_on_whether_neighbours_are_guided():
    _, target = models.target()
    requests = asked(0.8, max_tokens=24)
    guided = replace(requests[1], guidance=Guidance(scale=1.5, prompt=[4]))
    found = [
        run(tiny(target), "rejection", [requests[0], other], k=4, guidance=True).texts[0]
        for other in (requests[1], guided)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("processing", [{}, PENALTIES], ids=["free", "penalties"])
def test_samples_of_a_draft_model_equal_to_the_target_are_accepted_whole(processing):
    """Whatever is drafted for it: every probability that the verifier is told is the target's."""
    _, target = models.target()
    staged = StagedDrafter(draft=ModelDrafter(lm=target), inner=tiny(target))
    requests = [request([7, 3, 5], max_tokens=24, temperature=0.9, seed=row, processing=processing) for row in range(4)]
    result = run(staged, "rejection", requests, k=5)
    assert result.steps == 4 and result.summary.acceptance_rate == 1.0


def test_a_copied_prefix_holds_nothing_that_was_rejected():
    """A row that forks from another, whose stages have read rejected drafts and stood by since."""
    _, target = models.target()
    inner = StagedDrafter(draft=ModelDrafter(lm=target), inner=ModelDrafter(lm=target))
    staged = StagedDrafter(draft=oracle(target), inner=inner)  # whose tokens are often rejected
    decoder = decoder_for(staged, "coupled", rows=2, plan=PerRow(lambda row, tokens: 5 if len(tokens) < 20 else 0, 5))
    decoder.plan.batch = decoder.batch
    decoder.admit([request([5, 9, 2], max_tokens=60)], [0])
    while int(decoder.batch.length[0]) < 30:
        decoder.step()
    length = int(decoder.batch.length[0])
    tokens = decoder.batch.tokens[0, :length].tolist()
    decoder.plan.choose = lambda row, tokens: 5 * row
    decoder.admit([request([*tokens, 7], max_tokens=30)], [1], [Prefix(row=0, length=length - 1)])
    decoder.step()
    fresh = StagedDrafter(
        draft=oracle(target), inner=StagedDrafter(draft=ModelDrafter(lm=target), inner=ModelDrafter(lm=target))
    )
    other = decoder_for(fresh, "coupled", k=5, rows=1)
    other.admit([request([*tokens, 7], max_tokens=30)], [0])
    other.step()
    found = [
        (ours.stats.summary([1]), theirs.stats.summary([0]))
        for ours, theirs in zip(staged.stages, fresh.stages, strict=True)
    ]
    assert all(ours == theirs and sum(ours.drafted) for ours, theirs in found)
    assert decoder.results().tokens[1] == other.results().tokens[0]


class Silent(HostDrafter):
    def propose(self, sequences, num_draft_tokens):
        return {}


def test_what_cannot_be_staged_is_refused():
    _, target = models.target()
    tree = ModelDrafter(lm=target, draws=frozenset({Draw.NO_REPLACEMENT}))
    with pytest.raises(ValueError, match=r"'model' \(ModelDrafter\) cannot be drafted for: give a draft model"):
        StagedDrafter(draft=tree, inner=NgramDrafter())
    for inner in (tree, HostDrafting(Silent())):
        with pytest.raises(ValueError, match="cannot draft for a draft model: give 'ngram', a smaller draft model"):
            StagedDrafter(draft=ModelDrafter(lm=target), inner=inner)
    coupled, sampled = (ModelDrafter(lm=target, draws=frozenset({draw})) for draw in (Draw.SHARED, Draw.IID))
    with pytest.raises(ValueError, match="cannot draft for a draft model"):
        StagedDrafter(draft=sampled, inner=coupled)
    for name in ("num_inner_tokens", "max_forwards"):
        with pytest.raises(ValueError, match=f"{name}=0: give at least 1"):
            StagedDrafter(draft=ModelDrafter(lm=target), inner=NgramDrafter(), **{name: 0})
