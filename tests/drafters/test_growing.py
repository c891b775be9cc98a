"""Properties of every drafter that grows trees."""

import math

import pytest
import torch

from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft
from paceline.drafters import DRAFTERS
from paceline.drafters.base import DrafterContext
from paceline.drafters.early_exit import MAX_SKIPPED_STEPS
from paceline.drafters.feature import FeatureDrafter
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.tree.shapes import Topology
from tests import tiny
from tests.drafters import test_early_exit, test_layer_skip, test_model
from tests.engine.wrapped import Wrapped
from tests.harness import Alternating, decoder_for, expected, request, run, tiny_drafter

pytestmark = pytest.mark.one_in(14)

GROWING = [name for name in DRAFTERS.builtin if issubclass(DRAFTERS.find(name), GrowingDrafter)]
FEATURE_HEADS = ("medusa", "hydra", "mlp_speculator")
every_drafter = pytest.mark.parametrize("name", GROWING)


class RecordedInputs(Wrapped):
    """An LM that records what it is given at the valid nodes of each call."""

    def __init__(self, lm):
        super().__init__(lm)
        self.inputs = set()

    def __call__(self, tree, cache, *, start=0, resume=None, **options):
        valid = tree.valid[:, start:]
        hidden = valid & resume.ready if resume is not None else valid & False
        self.inputs |= {DraftInput.HIDDEN} if hidden.any() else set()
        self.inputs |= {DraftInput.EMBEDDING} if (valid & ~hidden).any() else set()
        return self.lm(tree, cache, start=start, resume=resume, **options)


def test_all_drafters_with_a_model_or_head_grow():
    heads = {"prophet", "linear_prophet", "eagle", "eagle3", "mtp", "block", *FEATURE_HEADS}
    assert set(GROWING) == {"early_exit", "layer_skip", "model", *heads}


@every_drafter
def test_the_model_reads_the_stated_inputs(name):
    drafter = tiny_drafter(name, tiny.target()[1])
    decoder = decoder_for(drafter, "coupled", rows=2)
    drafter.lm = RecordedInputs(drafter.lm)
    decoder.admit([request([5, 9, 2]), request([1])], range(2))
    for _ in range(3):
        decoder.step()
    assert drafter.lm.inputs == drafter.inputs
    assert isinstance(drafter, FeatureDrafter) or (DraftInput.HIDDEN in drafter.inputs) == bool(drafter.taps)


@every_drafter
@pytest.mark.parametrize("shape", [None, Topology(())])
def test_a_depth_of_zero_proposes_the_root_alone(name, shape):
    drafter = tiny_drafter(name, tiny.target()[1])
    drafter.shape = shape
    decoder = decoder_for(drafter, "coupled", rows=2)
    decoder.admit([request([5, 9, 2]), request([1])], range(2))
    tree = drafter.propose(decoder.batch, StepPlan(0 if shape is None else 2))
    assert tree.num_nodes == 1 and tree.no_draft_reason is NoDraft.OFF


ITSELF = {"model": test_model.itself, "early_exit": test_early_exit.itself, "layer_skip": test_layer_skip.itself}
with_the_target_itself = pytest.mark.parametrize("name", ITSELF)


@with_the_target_itself
@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_draft_equal_to_target_takes_the_fewest_steps(name, verifier, temperature, k):
    asked = [request([7, 3, 5][: 1 + i], max_tokens=23, temperature=temperature, seed=i) for i in range(3)]
    result = run(ITSELF[name](), verifier, asked, k=k)
    assert result.steps == math.ceil(23 / (k + 1))
    assert result.summary.acceptance_rate == 1.0
    assert result.texts == [expected(one) for one in asked] or verifier == "rejection"


PLANS = [(3, 0), (0, 0, 0, 0, 5), (1, 5, 0, 2), (0,) * 12 + (4,), (3, *(0,) * (MAX_SKIPPED_STEPS + 9), 4)]


@with_the_target_itself
@pytest.mark.parametrize("lengths", PLANS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_catches_up_after_pauses(name, lengths, temperature):
    asked = [request([7, 3, 5, 1][: 1 + i], max_tokens=60, temperature=temperature, seed=i) for i in range(3)]
    result = run(ITSELF[name](), "coupled", asked, plan=Alternating(*lengths))
    assert result.texts == [expected(one) for one in asked]
    assert result.summary.acceptance_rate == 1.0, "unread tokens cost acceptance"


@pytest.mark.parametrize("name", [name for name in GROWING if name not in ("layer_skip", "model")])
def test_a_head_of_another_target_is_refused_before_any_row(name):
    drafter = tiny_drafter(name, tiny.target()[1])
    with pytest.raises(ValueError, match="3 layers and 61 tokens, and the target has 1 layers and 61 tokens: give"):
        decoder_for(drafter, "coupled", target=tiny.draft())


@every_drafter
def test_a_long_draft_starts_without_growers_for_every_depth(name):
    """Made depth by depth, or node by node through paths, a chain of this length would take hours and run out of
    memory.
    """
    target = tiny.target()[1]
    drafter = tiny_drafter(name, target)
    drafter.max_context = None
    length = 3000
    drafter.check_target = drafter.allocate = lambda *given, **more: None  # a cache is none of this
    drafter.start(
        DrafterContext(
            rows=1,
            max_length=64,
            max_draft_tokens=length,
            vocab_size=target.vocab_size,
            draw=Draw.SHARED,
            device=torch.device("cpu"),
            target=target,
            cache=target.new_cache(1, 8).view(),
        )
    )
    own = {"linear_prophet", *FEATURE_HEADS, "block"}  # whose heads have a limit
    depth = drafter.head.config.trained_depth if name in own else length
    assert list(drafter.growers) == [length] and drafter.max_nodes(length) == 1 + drafter.depth == 1 + depth
    grower, _ = drafter.growers[length]
    assert grower.num_expanded == len(grower.steps) - 1 == depth - 1
    batch = Batch(rows=1, max_length=64, max_depth=4, vocab_size=8, device=torch.device("cpu"))
    GrowingDrafter.begin_step(drafter, batch, StepPlan(2))
    assert list(drafter.growers) == [length, 2]
