"""The target without some sub-layers as its own draft: how far its drafts go, and what changes its set."""

import math

import pytest
import torch

from paceline.api import Engine, SamplingParams
from paceline.core.guidance import Guidance
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.drafters.sublayer_search import OnTheFly, Proposals, as_numbers, as_skipped
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.engine.runner import ops_for
from paceline.models.adapter.adapt import adapt
from paceline.models.backend import fastest
from paceline.models.sublayers import SkippedSublayers, format_layers, parse_layers
from tests import tiny as models
from tests.api.engines import bare
from tests.engine.wrapped import Counted, Wrapped
from tests.harness import Alternating, decoder_for, expected, finish, planned_step, request, run

FLOOR = 1.7  # mean acceptance length on the conformance prompts, greedy
PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
ALL = frozenset(range(3))
NOTHING, EVERYTHING = SkippedSublayers(), SkippedSublayers(attention=ALL, mlp=ALL)
SOME = SkippedSublayers(attention=frozenset({1}), mlp=frozenset({2}))
SHAPES = {
    "chain": None,
    "bushy": Topology(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (0, 0, 0))),
    "binary": Topology.branching((2, 2, 2)),
    "confident": Confident(num_drafted=7, depth=3, width=2),
}
EAGER, FAST = "eager", "kernel"
every_path = pytest.mark.parametrize("path", [EAGER, FAST])


def tiny(target):
    return LayerSkipDrafter(sublayers=SkippedSublayers(attention=frozenset({2})))


def itself():
    return LayerSkipDrafter(sublayers=NOTHING)


def guessable_target():
    """A target whose last attention says little."""
    model = models.llama(seed=1)
    with torch.no_grad():
        model.model.layers[2].self_attn.o_proj.weight.mul_(0.2)
    return model, models.native(model)


def on(path):
    """The tiny target, and what surrounds it in a step."""
    target = models.target()[1]
    return (target, {}) if path == EAGER else (fastest(target), {"ops": ops_for(target.device)})


def asked(max_tokens=24, **options):
    return [request(p, max_tokens=max_tokens, seed=i, **options) for i, p in enumerate(PROMPTS)]


def decode(drafter, requests, *, path=EAGER, k=3, **options):
    target, parts = on(path)
    return run(drafter, "coupled", requests, target=target, parts=parts, k=k, **options)


@pytest.mark.one_in(3)
@every_path
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["chain", "bushy", "binary"])
def test_nothing_skipped_accepts_everything(name, temperature, path):
    drafter = LayerSkipDrafter(sublayers=NOTHING, shape=SHAPES[name], draws=frozenset({Draw.SHARED}))
    requests = asked(25, temperature=temperature)
    result = decode(drafter, requests, path=path)
    assert result.texts == [expected(one) for one in requests]
    assert result.steps == math.ceil(25 / 4)


@pytest.mark.one_in(3)
@every_path
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SHAPES)
def test_everything_skipped_is_lossless(name, temperature, path):
    requests = asked(temperature=temperature)
    result = decode(LayerSkipDrafter(sublayers=EVERYTHING, shape=SHAPES[name]), requests, path=path)
    assert result.texts == [expected(one) for one in requests]
    assert sum(result.summary.drafted) > 0


@pytest.mark.parametrize("name", SHAPES)
def test_kernel_drafts_what_eager_operations_draft(name):
    runs = [decode(LayerSkipDrafter(sublayers=SOME, shape=SHAPES[name]), asked(), path=path) for path in (EAGER, FAST)]
    assert runs[0].summary == runs[1].summary
    assert runs[0].summary.mean_acceptance_length > 1.2


def test_chains_are_drafted_in_one_call_of_the_kernel():
    target, parts = on(FAST)
    drafter = LayerSkipDrafter(sublayers=SOME)
    decoder = decoder_for(drafter, "coupled", target=target, parts=parts, rows=1, k=3)
    decoder.admit(asked()[:1], [0])
    with torch.inference_mode():
        plan = decoder.plan()
        decoder.begin_step(plan)
        tokens, valid = decoder.batch.begin_chain(3)
        drafter.reads = decoder.batch.active
        assert drafter.draft_fused(decoder.batch, tokens, valid, greedy=False)
        assert tokens.tolist() == drafter.propose(decoder.batch, plan).tokens.tolist()


def test_rows_without_a_draft_read_nothing():
    """Their slots above the committed ones stay as they are."""
    for path in (EAGER, FAST):
        target, parts = on(path)
        decoder = decoder_for(LayerSkipDrafter(sublayers=SOME), "coupled", target=target, parts=parts, rows=2, k=3)
        decoder.admit([request(PROMPTS[0], max_tokens=9, num_draft_tokens=count) for count in (0, 3)], range(2))
        before = decoder.cache.storage.keys[:, :2].clone()
        with torch.inference_mode():
            plan = decoder.plan()
            decoder.begin_step(plan)
            decoder.draft(plan)
        changed = (decoder.cache.storage.keys[:, :2] != before).flatten(2).any(-1)
        assert not changed[:, 0].any()
        assert changed[:, 1].tolist() == [True, False, True], "the attention of layer 1 is skipped"


@every_path
def test_another_set_in_every_step_leaves_the_output(path):
    target, parts = on(path)
    drafter = LayerSkipDrafter(sublayers=NOTHING)
    decoder = decoder_for(drafter, "coupled", target=target, parts=parts, rows=len(PROMPTS), k=3)
    requests = asked()
    decoder.admit(requests, range(len(PROMPTS)))
    sets = (SOME, EVERYTHING, NOTHING, SkippedSublayers(mlp=frozenset({0, 1})))
    texts = [[] for _ in PROMPTS]
    for step in range(30):
        drafter.lm = target.without(sets[step % len(sets)])
        decoder.step()
        for text, tokens in zip(texts, decoder.results().tokens, strict=True):
            text += tokens
    assert texts == [expected(one) for one in requests]


def test_step_without_drafts_runs_the_target_once():
    target = Counted(models.target()[1])
    decoder = decoder_for(tiny(None), "coupled", target=target, plan=Alternating(0), rows=len(PROMPTS))
    decoder.admit(asked(), range(len(PROMPTS)))
    target.take()
    for _ in range(6):
        decoder.step()
        assert target.take() == len(PROMPTS)


def test_drafting_leaves_the_committed_slots_of_the_cache():
    decoder = decoder_for(LayerSkipDrafter(sublayers=SOME), "coupled", rows=1, k=3)
    decoder.admit([request(PROMPTS[3], max_tokens=20)], [0])
    for _ in range(4):
        plan, committed = decoder.plan(), int(decoder.cache.length[0])
        before = decoder.cache.storage.keys[:, 0, :committed].clone()
        with torch.inference_mode():
            decoder.begin_step(plan)
            decoder.draft(plan)
        assert int(decoder.cache.length[0]) == committed
        assert torch.equal(decoder.cache.storage.keys[:, 0, :committed], before)
        planned_step(decoder, plan)


@every_path
def test_guided_rows_are_drafted_for_with_their_negative_prompts(path):
    target, parts = on(path)
    requests = [
        Request(tokens=prompt, max_tokens=20, guidance=Guidance(scale=3.0, prompt=[4, 4, 1])) for prompt in PROMPTS
    ]
    decoder = decoder_for(
        LayerSkipDrafter(sublayers=NOTHING),
        "coupled",
        target=target,
        parts=parts,
        rows=len(PROMPTS),
        guidance=True,
        k=3,
    )
    decoder.admit(requests, range(len(PROMPTS)))
    assert finish(decoder, rows=range(len(PROMPTS)), prompts=PROMPTS).steps == math.ceil(20 / 4)


def test_a_target_that_runs_whole_or_not_at_all_is_refused():
    with pytest.raises(ValueError, match=r"runs all of its layers or none: .* backend='native'"):
        decoder_for(tiny(None), "coupled", target=adapt(models.target()[0]), k=3)


@every_path
def test_a_layer_that_the_target_lacks_is_refused(path):
    with pytest.raises(ValueError, match=r"attention=2-3: the model has no layer 3; give layers from 0 to 2"):
        skipped = SkippedSublayers(attention=frozenset({2, 3}))
        decoder_for(LayerSkipDrafter(sublayers=skipped), "coupled", target=on(path)[0], k=3)


QUICK = OnTheFly(window=4, every=1, budget=20, ratio=0.3)


def searching(options=QUICK, temperature=0.0, max_tokens=40, path=EAGER):
    drafter = LayerSkipDrafter(sublayers=NOTHING, on_the_fly=options)
    requests = asked(max_tokens, temperature=temperature)
    return drafter, requests, decode(drafter, requests, path=path)


@every_path
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_search_leaves_the_output_and_is_deterministic(temperature, path):
    drafter, requests, result = searching(temperature=temperature, path=path)
    assert result.texts == [expected(one) for one in requests]
    again, _, repeated = searching(temperature=temperature, path=path)
    assert drafter.search.num_tried > 3
    assert (again.search.num_tried, again.sublayers) == (drafter.search.num_tried, drafter.sublayers)
    assert repeated.summary == result.summary


def test_the_search_finds_the_sub_layer_that_says_nothing():
    """Of the two of the middle layer, one is to be skipped."""
    model = models.llama(seed=1)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.zero_()
    target = models.native(model)
    drafter = LayerSkipDrafter(
        sublayers=SkippedSublayers(attention=frozenset({1})), on_the_fly=OnTheFly(window=8, every=1, ratio=0.17)
    )
    result = run(drafter, "coupled", asked(60), target=target, k=3)
    assert drafter.sublayers == SkippedSublayers(mlp=frozenset({1}))
    assert drafter.search.done and drafter.search.matchness == 1.0
    assert result.summary.mean_acceptance_length > 2


def test_the_matchness_of_the_whole_target_is_1():
    """The window's prefix is read from a copy of the target's cache."""
    drafter = LayerSkipDrafter(sublayers=SOME, on_the_fly=QUICK)
    decoder = decoder_for(drafter, "coupled", rows=2, k=3)
    decoder.admit(asked()[2:], range(2))
    for _ in range(12):
        decoder.step()
    search, length = drafter.search, int(decoder.batch.length[1])
    with torch.inference_mode():
        search._copy_prefix(1, length - 1 - 8)
        assert search._try(NOTHING, decoder.batch.tokens[1, length - 9 : length]) == 1.0


def test_the_search_ends_after_its_budget():
    drafter, _, _ = searching(OnTheFly(window=4, every=1, budget=3, ratio=0.3))
    assert drafter.search.done and drafter.search.num_tried <= 4
    assert drafter.host_state == drafter.sublayers


def test_a_search_is_not_recorded():
    drafter, _, _ = searching(OnTheFly(window=30, every=100))
    assert drafter.host_state is None
    assert LayerSkipDrafter(sublayers=SOME).host_state == ()


class Noted(Wrapped):
    """The whole target and what is left of it, which note the shapes of what they read."""

    def __init__(self, lm, read=None):
        super().__init__(lm)
        self.read = [] if read is None else read

    def __call__(self, tree, cache, **options):
        self.read.append(tuple(tree.tokens.shape))
        return self.lm(tree, cache, **options)

    def without(self, skipped):
        return Noted(self.lm.without(skipped), self.read)


class Letting(Plan):
    """Drafts 3 tokens, or none, and lets the drafter search, or not, in turns of (depth, searches)."""

    max_draft_tokens = 3

    def __init__(self, *turns):
        self.turns, self.asked = turns, 0

    def __call__(self):
        depth, searches = self.turns[self.asked % len(self.turns)]
        self.asked += 1
        return StepPlan(depth, searches=searches)


def trials(plan, *, steps):
    """How often the window was read in each step."""
    target, options = Noted(models.target()[1]), OnTheFly(window=5, every=1, ratio=0.3)
    decoder = decoder_for(LayerSkipDrafter(sublayers=SOME, on_the_fly=options), "coupled", target=target, plan=plan)
    decoder.admit([request([8] * 6, max_tokens=60)], [0])
    found = []
    for _ in range(steps):
        target.read.clear()
        decoder.step()
        found.append(target.read.count((1, 5)))
    return found


def test_a_plan_stops_the_search():
    """Also where a step without a draft, or of a plan that does not let it, is the one in which a trial is due."""
    assert sum(trials(Letting((3, False)), steps=16)) == 0
    assert sum(trials(Letting((0, True)), steps=40)) == 0
    assert sum(trials(Letting((3, True)), steps=16)) > 8
    found = trials(Letting((3, False), (0, True), (3, False), (3, True)), steps=24)
    assert sum(found[3::4]) > 3 and sum(found) == sum(found[3::4])


def test_the_search_waits_until_the_controller_has_paid_for_it():
    """The first trial would come within the first drafts otherwise."""
    drafter = LayerSkipDrafter(sublayers=NOTHING, on_the_fly=OnTheFly(window=8, every=1, ratio=0.3))
    target = Noted(models.target()[1])
    engine = Engine(bare(target), drafter=drafter, batch_size=1, max_length=60)
    [result] = engine.generate([PROMPTS[3]], SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
    assert sum(result.stats.drafted) >= 8  # the first four lessons
    assert target.read.count((1, 8)) == 0


def test_a_step_that_may_search_is_not_recorded_and_others_are_by_their_set():
    drafter = LayerSkipDrafter(sublayers=SOME, on_the_fly=QUICK)
    decoder = decoder_for(drafter, "coupled", rows=1, k=3)
    decoder.admit(asked()[:1], [0])
    for plan, state in (
        (StepPlan(3), None),
        (StepPlan(0), SOME),
        (StepPlan(3), None),
        (StepPlan(3, searches=False), SOME),
    ):
        decoder.begin_step(plan)
        assert drafter.host_state == state
    decoder.begin_step(StepPlan(3))
    drafter.stand_by(decoder.batch, 4)
    assert drafter.host_state == SOME


@pytest.mark.parametrize("verifier", ["rejection", "block", "recursive"])
def test_a_search_under_a_verifier_whose_tokens_depend_on_drafts_is_refused(verifier):
    drafter = LayerSkipDrafter(sublayers=SOME, on_the_fly=OnTheFly())
    with pytest.raises(ValueError, match=rf"{verifier}'s tokens depend on the draft.* coupled, match"):
        decoder_for(drafter, verifier, k=3)


def test_estimator_prefers_members_of_good_sets():
    late, good = [], {1, 4, 7, 9}
    for seed in range(6):
        proposals = Proposals(range(12), 4, seed=seed)
        for _ in range(64):
            chosen = proposals.next()
            assert len(chosen) == 4
            proposals.tell(chosen, len(chosen & good) / 4)
        scores = [score for _, score in proposals.trials]
        assert max(scores) == 1.0
        late += scores[-20:]
    assert sum(late) / len(late) > 0.6  # a third of a set drawn at random is good


@pytest.mark.parametrize(
    ("option", "value"), [("ratio", 0.0), ("ratio", 1.0), ("enough", 1.2), ("window", 0), ("every", 0), ("budget", 0)]
)
def test_options_of_the_search_are_checked(option, value):
    with pytest.raises(ValueError, match=f"^{option}={value}: give "):
        OnTheFly(**{option: value})


def test_sets_are_written_as_they_are_read():
    assert parse_layers("3-5; 8") == {3, 4, 5, 8}
    assert format_layers({8, 3, 5, 4}) == "3-5;8"
    assert str(SkippedSublayers(attention=parse_layers("3-5;8"), mlp=frozenset({2}))) == "attention=3-5;8,mlp=2"
    assert str(NOTHING) == "nothing"
    assert as_skipped(as_numbers(SOME)) == SOME
    for text in ("", "a", "3-", "5-3", "1;;2", "-1"):
        with pytest.raises(ValueError, match="write numbers and ranges"):
            parse_layers(text)
