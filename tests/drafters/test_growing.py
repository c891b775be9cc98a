"""Properties of every drafter that grows trees."""

import pytest

from paceline.core.step import StepPlan
from paceline.core.tree import NoDraft
from paceline.drafters import DRAFTERS
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.tree.shapes import Topology
from tests import tiny
from tests.harness import decoder_for, request, tiny_drafter

GROWING = [name for name in DRAFTERS.builtin if issubclass(DRAFTERS.find(name), GrowingDrafter)]
every_drafter = pytest.mark.parametrize("name", GROWING)


class RecordedInputs:
    """An LM that records what it is given at the valid nodes of each call."""

    def __init__(self, lm):
        self.lm, self.inputs = lm, set()

    def __getattr__(self, name):
        return getattr(self.lm, name)

    def __call__(self, tree, cache, *, start=0, resume=None, **options):
        valid = tree.valid[:, start:]
        hidden = valid & resume.ready if resume is not None else valid & False
        self.inputs |= {DraftInput.HIDDEN} if hidden.any() else set()
        self.inputs |= {DraftInput.EMBEDDING} if (valid & ~hidden).any() else set()
        return self.lm(tree, cache, start=start, resume=resume, **options)


def test_all_drafters_with_a_model_or_head_grow():
    assert set(GROWING) == {"early_exit", "model", "prophet", "linear_prophet"}


@every_drafter
def test_the_model_reads_the_stated_inputs(name):
    drafter = tiny_drafter(name, tiny.target()[1])
    drafter.lm = RecordedInputs(drafter.lm)
    decoder = decoder_for(drafter, "coupled", rows=2)
    decoder.admit([request([5, 9, 2]), request([1])], range(2))
    for _ in range(3):
        decoder.step()
    assert drafter.lm.inputs == drafter.inputs
    assert (DraftInput.HIDDEN in drafter.inputs) == bool(drafter.taps)


@every_drafter
@pytest.mark.parametrize("shape", [None, Topology(())])
def test_a_depth_of_zero_proposes_the_root_alone(name, shape):
    drafter = tiny_drafter(name, tiny.target()[1])
    drafter.shape = shape
    decoder = decoder_for(drafter, "coupled", rows=2)
    decoder.admit([request([5, 9, 2]), request([1])], range(2))
    tree = drafter.propose(decoder.batch, StepPlan(0 if shape is None else 2))
    assert tree.num_nodes == 1 and tree.no_draft_reason is NoDraft.OFF
