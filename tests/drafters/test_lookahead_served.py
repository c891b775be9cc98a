"""Lookahead decoding with what targets, requests and other drafters bring."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.core.guidance import Guidance
from paceline.core.plan import Fixed
from paceline.drafters.candidates import CandidateDrafters
from paceline.drafters.guard import DraftError
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.models.adapter.adapt import adapt
from paceline.models.backend import fastest
from paceline.models.native.decoder import DecoderLM
from tests import tiny as models
from tests.conformance.test_guidance import guided, naive
from tests.constraints.regular import calling
from tests.constraints.test_host_constraints import CIRCLE, constrained, wanted
from tests.drafters.test_lookahead import FLOOR, TREE, greedy, sampled
from tests.harness import decoder_for, expected, request, run


@pytest.mark.parametrize("options", [{}, TREE], ids=["chain", "tree"])
def test_the_kernel_gives_the_same(options):
    model, target = models.looping_target()
    for requests in (greedy(), sampled()):
        eager = run(LookaheadDrafter(**options), "coupled", requests, target=target, k=4)
        kernel = run(LookaheadDrafter(**options), "coupled", requests, target=fastest(target), k=4)
        assert kernel.texts == eager.texts == [expected(r, model) for r in requests]
        assert kernel.summary == eager.summary


def test_a_transformers_model_as_the_target():
    model, _ = models.looping_target()
    result = run(LookaheadDrafter(), "coupled", greedy(), target=adapt(model), k=3)
    assert result.texts == [expected(r, model) for r in greedy()]
    assert result.summary.mean_acceptance_length > FLOOR


@pytest.mark.parametrize("options", [{}, TREE], ids=["chain", "tree"])
def test_grammars_and_processors_of_the_host(options):
    """They see the draft alone, beside rows that have none."""

    def shy(tokens, logits):
        """Reads the whole path."""
        assert len(tokens) <= 3 + 20
        return logits.index_fill(0, tokens[-1:] % 7, -torch.inf)

    asked = [
        constrained([5, 9, 2], CIRCLE, max_tokens=20),
        constrained([5, 9, 2], CIRCLE, max_tokens=20, temperature=1.0, seed=4),
        constrained([1, 2], calling(shy), max_tokens=20),
        request([5, 9, 2], max_tokens=20),
    ]
    plain = run(NoDrafter(), "coupled", asked, k=0)
    result = run(LookaheadDrafter(**options), "coupled", asked, k=3)
    assert result.texts == plain.texts and result.texts[:2] == [wanted(one) for one in asked[:2]]
    assert sum(result.summary.accepted) > 0


def test_penalties_and_bans():
    processing = dict(repetition_penalty=1.3, no_repeat_ngram=3, bias=(((7,), 2.5), ((8, 41), 5.0)))
    for requests in ([replace_processing(r, processing) for r in some] for some in (greedy(), sampled())):
        result = run(LookaheadDrafter(), "coupled", requests, k=3)
        assert result.texts == [expected(r) for r in requests]


def replace_processing(one, processing):
    return replace(one, processing=replace(one.processing, **processing))


def test_guided_rows_have_a_window_of_guided_logits():
    model, target = models.looping_target()
    asked = [guided([3, 9, 4], 1.7, [1, 2]), guided([7, 7, 1, 2, 5, 8], 1.4, [4])]
    result = run(LookaheadDrafter(from_prompt=False), "coupled", asked, target=target, k=3, guidance=True)
    assert result.texts == [naive(model, one) for one in asked]
    assert isinstance(asked[0].guidance, Guidance) and result.summary.mean_acceptance_length > 1.5


def test_one_of_several_drafters():
    model, target = models.looping_target()
    drafter = LookaheadDrafter()

    class InTurn(Fixed):
        def __call__(self):
            self.asked = getattr(self, "asked", 0) + 1
            return replace(self.step, drafter=self.asked % 2)

    several = CandidateDrafters([NgramDrafter(max_ngram=2), drafter])
    result = run(several, "coupled", greedy(), target=target, plan=InTurn(3))
    assert result.texts == [expected(r, model) for r in greedy()]
    assert int(drafter.age.max()) == (result.steps + 1) // 2 and several.max_nodes(3) == drafter.max_nodes(3)
    assert any(1 in row for report in result.reports for row in report.origins), "what it drafted was accepted"


@pytest.mark.parametrize("sampling", [dict(), dict(temperature=0.7, top_k=9)])
def test_steps_of_trees_run_on_fake_tensors(sampling):
    _, target = models.target()
    with FakeTensorMode():
        fake = DecoderLM(target.config).requires_grad_(False)
        decoder = decoder_for(LookaheadDrafter(**TREE), "coupled", target=fake, k=3, rows=2)
        decoder.admit([request([1, 2, 3], max_tokens=40, **sampling), request([4], max_tokens=30)], [0, 1])
        for _ in range(3):
            decoder.step()


@pytest.mark.slow
def test_steps_of_trees_compile_whole_and_once():
    eager, compiled = (decoder_for(LookaheadDrafter(**TREE), "coupled", k=3, rows=2) for _ in range(2))
    for decoder in (eager, compiled):
        decoder.admit(sampled(2), [0, 1])
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        step = torch.compile(compiled.step, fullgraph=True, backend="aot_eager")
        for _ in range(6):
            eager.step()
            step()
    assert compiled.batch.tokens[:, :-1].tolist() == eager.batch.tokens[:, :-1].tolist()


def test_a_drafter_of_others_cannot_propose_what_is_not_verified():
    class Other(LookaheadDrafter.__base__):
        draws, origins = LookaheadDrafter.draws, ("other",)
        num_unverified = 14

        def __init__(self):
            self.inner = LookaheadDrafter()

        def start(self, context):
            self.inner.start(context)

        def prefill(self, batch, admission, hidden):
            self.inner.prefill(batch, admission, hidden)

        def propose(self, batch, plan):
            return self.inner.propose(batch, plan)

        def observe(self, batch, tree, outcome, hidden):
            pass

    decoder = decoder_for(Other(), "coupled", k=3)
    decoder.admit(greedy(1), [0])
    with pytest.raises(DraftError, match="unverified"):
        decoder.step()
