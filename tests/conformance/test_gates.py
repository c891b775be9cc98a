"""The step never waits for the host: it runs on fake tensors and compiles whole, without recompiling."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from paceline.core.host_draft import HostDraft
from paceline.core.plan import Fixed
from paceline.core.step import StepPlan
from paceline.drafters import DRAFTERS
from paceline.drafters.candidates import CandidateDrafters
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.models.native.decoder import DecoderLM
from paceline.verifiers import VERIFIERS
from tests import tiny
from tests.harness import decoder_for, family_cases, pairs, request, tiny_drafter

pytestmark = pytest.mark.one_in(15)

K = 3
SHAPES = {"trees": Topology.branching((2, 1)), "confident trees": Confident(num_drafted=9, depth=3, width=3)}
TREE, CONFIDENT = (f" in {label}" for label in SHAPES)


def make(drafter, target):
    """A drafter's tiny instance, where its name says so with branches."""
    name, _, label = drafter.partition(" in ")
    instance = tiny_drafter(name, target)
    if instance.on_host:  # what it does on the host comes before the step, and is no part of it
        instance.begin_step, instance.copies = lambda batch, plan: None, False
    if label:
        instance.shape, instance.branches = SHAPES[label], True
        instance.draws = instance.draws & instance.shape.draws
    return instance


def growing():
    """Drafters that grow trees of any shape, under one verifier; the draft model under every verifier for trees."""
    for drafter in DRAFTERS.builtin:
        if "shape" in vars(tiny_drafter(drafter, tiny.target()[1])):
            for name in VERIFIERS.builtin:
                if name == "coupled" or (drafter == "model" and VERIFIERS.find(name).branches):
                    yield drafter + TREE, name
    yield "model" + CONFIDENT, "coupled"


PAIRS = [*pairs(), *growing()]
every_pair = pytest.mark.parametrize(("drafter", "verifier"), [*family_cases(), *growing()])


def requests(sampled):
    options = dict(temperature=0.7, top_k=9, top_p=0.9, min_p=0.01) if sampled else {}
    return [request([1, 2, 3], max_tokens=40, seed=1, **options), request([4], max_tokens=30), request([5, 5] * 3)]


@pytest.mark.each_value
@every_pair
@pytest.mark.parametrize("sampled", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_step_runs_on_fake_tensors(drafter, verifier, sampled):
    _, target = tiny.target()
    with FakeTensorMode():
        fake = DecoderLM(target.config).requires_grad_(False)
        decoder = decoder_for(make(drafter, fake), verifier, target=fake, k=K, rows=3)
        decoder.admit(requests(sampled), range(3))
        for _ in range(3):
            decoder.step()
        with pytest.raises(DataDependentOutputException):
            decoder.results()  # results are read outside the step; the gate would notice it inside


def test_copies_beside_drafts_run_on_fake_tensors():
    _, target = tiny.target()
    plan = Fixed(2 * K)
    plan.step = StepPlan(K, (K, 0, K), copies={1: HostDraft((1, 2, 3, 4, 5))}, num_copied=2 * K, drafter=1)
    with FakeTensorMode():
        fake = DecoderLM(target.config).requires_grad_(False)
        drafter = CandidateDrafters([make("suffix", fake), tiny_drafter("model", fake)])
        drafter.copies = False
        decoder = decoder_for(drafter, "coupled", target=fake, k=2 * K, rows=3, plan=plan)
        decoder.admit(requests(True), range(3))
        for _ in range(3):
            decoder.step()
        with pytest.raises(DataDependentOutputException):
            decoder.results()


def compiled_cases():
    """Compiling takes up to half a minute: here two drafters, a verifier each."""
    for sampled in (False, True):
        for drafter, verifier in PAIRS:
            chosen = (drafter, verifier) in (("model", "rejection"), ("ngram", "coupled"))
            soon = chosen and sampled
            yield pytest.param(drafter, verifier, sampled, marks=[] if soon else [pytest.mark.slow])


@pytest.mark.parametrize(("drafter", "verifier", "sampled"), list(compiled_cases()))
def test_the_step_compiles_whole_and_once(drafter, verifier, sampled):
    _, target = tiny.target()
    eager, compiled = (decoder_for(make(drafter, target), verifier, k=K, rows=3) for _ in range(2))
    for decoder in (eager, compiled):
        decoder.admit(requests(sampled), range(3))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        step = torch.compile(compiled.step, fullgraph=True, backend="aot_eager")
        for _ in range(6):
            eager.step()
            step()
            assert compiled.batch.tokens[:, :-1].tolist() == eager.batch.tokens[:, :-1].tolist()
    assert compiled.stats.summary() == eager.stats.summary()
    assert compiled.stats.summary().steps == 18
