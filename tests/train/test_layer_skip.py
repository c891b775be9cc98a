"""The LayerSkip recipe: skipped layers, exit weights, and the loss."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.train.tasks import DraftHeadTask, NextToken, TrainedHead
from paceline.train.tasks.layer_skip import LayerSkip, LayerSkipSection
from paceline.train.tasks.losses import DistillationLoss
from paceline.train.validation import text_loss
from tests import tiny
from tests.train.test_tasks import DRAWS, assert_gradients, assert_micro_batches_match, batch

LAYERS = 4
HALF = {"dropout": 0.6, "curriculum": "none", "exit_scale": 0.5}


def recipe(num_layers=LAYERS, num_steps=16, **fields):
    return LayerSkip(LayerSkipSection(**fields), num_layers=num_layers, num_steps=num_steps)


def model():
    return tiny.native(tiny.llama(1, num_hidden_layers=LAYERS))


def next_token(lm=None, **fields):
    return NextToken(model=lm or model(), layer_skip=recipe(**fields))


def joint(lm, *, weight=0.0, **fields):
    config = EarlyExitConfig(exit_layer=2, num_blocks=0, own_norm=False)
    head = EarlyExitHead.make(config, lm, generator=torch.Generator())
    loss = DistillationLoss(terms={"kl": 1.0})
    trained_heads = [TrainedHead(name="exit", head=head, weight=weight)]
    skip = recipe(**fields) if fields else None
    return DraftHeadTask(target=lm, heads=trained_heads, loss=loss, target_weight=1.0, layer_skip=skip)


def skipped_rows(skip, randomness=DRAWS):
    """The layers that the rows of ``batch()`` skip in a step."""
    return skip.skipped(randomness.step, [randomness.for_target().generator(row) for row in range(4)])


def test_skip_probs_rise_from_zero_to_dropout():
    found = recipe(3, dropout=0.2).skip_probs(0)
    torch.testing.assert_close(found, torch.tensor([0, 0.2 * (2**0.5 - 1), 0.2], dtype=torch.float64))
    assert torch.equal(recipe(3, dropout=0.2).skip_probs(15), found)
    assert float(recipe(2, dropout=0.2).skip_probs(0)[1]) == pytest.approx(0.2)


def test_ramped_skip_probs_rise_with_the_step():
    skip = recipe(3, num_steps=5, dropout=0.2, ramp=True)
    last = [float(skip.skip_probs(step)[-1]) for step in range(5)]
    assert last == pytest.approx([0.2 * (2 ** (step / 4) - 1) for step in range(5)])
    assert skip.skipped(0, []) is None and recipe(3, num_steps=1, ramp=True).skipped(0, []) is None


def test_layers_are_skipped_with_their_probabilities():
    skip = recipe(dropout=0.5)
    generators = [torch.Generator().manual_seed(seed) for seed in range(4000)]
    share = skip.skipped(0, generators).double().mean(0)
    assert share[0] == 0
    torch.testing.assert_close(share, skip.skip_probs(0), rtol=0, atol=0.03)


def test_exit_weights_grow_with_depth_and_sum_to_one():
    found = recipe(curriculum="none", exit_scale=0.5).weights(0)
    assert found == pytest.approx({2: 0.5 / 6.5, 3: 1.5 / 6.5, 4: (3 + 1.5) / 6.5})
    assert recipe(curriculum="none", exit_scale=0).weights(0) == {4: 1.0}
    assert recipe(2, curriculum="none", exit_scale=5).weights(0) == {2: 1.0}, "the first layer has no exit of its own"


@pytest.mark.parametrize(("step", "taps"), [(0, {4, 6}), (1, {2, 5, 6}), (2, {3, 6}), (3, {4, 6}), (100, {2, 5, 6})])
def test_rotational_curriculum_trains_exits_in_turn_and_the_last_layer_always(step, taps):
    found = recipe(6, curriculum="rotational", every=3).weights(step)
    assert found.keys() == taps and sum(found.values()) == pytest.approx(1)


def test_gradual_curriculum_adds_exits_from_the_deepest_within_half_of_the_steps():
    skip = recipe(5, num_steps=40, curriculum="gradual")
    found = [set(skip.weights(step)) for step in range(40)]
    assert found == [{5}] * 4 + [{4, 5}] * 4 + [{3, 4, 5}] * 4 + [{2, 3, 4, 5}] * 28


def test_skipped_layer_leaves_only_its_rows_residual_stream_unchanged():
    lm, whole = model(), batch()
    skipped = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]], dtype=torch.bool)
    taps = range(LAYERS + 1)
    plain = lm.causal(whole.tokens, taps=taps)
    found = lm.causal(whole.tokens, taps=taps, skipped=skipped)
    for row in range(4):
        for layer in range(LAYERS):
            same = torch.equal(found.hidden[layer + 1][row], found.hidden[layer][row])
            assert same == bool(skipped[row, layer]), (row, layer)
    assert torch.equal(found.logits[1], plain.logits[1])
    assert torch.equal(found.hidden[2][3], plain.hidden[2][3])


def naive(reference, whole, weights, skipped):
    """The loss by a transformers model from which skipped and later layers are removed."""
    layers, total = reference.model.layers, torch.zeros((), dtype=torch.float64)
    for row in range(4):
        tokens = whole.tokens[row : row + 1]
        for tap, weight in weights.items():
            used_layers = [layers[at] for at in range(tap) if not skipped[row, at]]
            reference.model.layers = torch.nn.ModuleList(used_layers)
            logits = reference(tokens[:, :-1], use_cache=False).logits[0]
            entropy = F.cross_entropy(logits, tokens[0, 1:], reduction="none")
            total = total + weight * (entropy * whole.learned[row, 1:]).sum()
    reference.model.layers = layers
    return total


def test_loss_matches_models_without_the_skipped_layers():
    reference = tiny.llama(1, num_hidden_layers=LAYERS)
    whole, task = batch(masked=True), next_token(tiny.native(reference), **HALF)
    skipped, weights = skipped_rows(task.layer_skip), task.layer_skip.weights(DRAWS.step)
    assert skipped.any() and not skipped.all(-1).any() and len(weights) == 3
    result = task.train()(whole, DRAWS)
    wanted = naive(reference, whole, weights, skipped)
    torch.testing.assert_close(result.loss.double(), wanted, rtol=1e-6, atol=1e-5)
    early = {tap: weight / (1 - weights[LAYERS]) for tap, weight in weights.items() if tap < LAYERS}
    sums, count = result.metrics["loss.exits"][:, 0]
    torch.testing.assert_close(sums.double(), naive(reference, whole, early, skipped), rtol=1e-6, atol=1e-5)
    assert count == whole.learned[:, 1:].sum()
    last = naive(reference, whole, {LAYERS: 1.0}, skipped)
    torch.testing.assert_close(result.metrics["loss.text"][0, 0].double(), last, rtol=1e-6, atol=1e-5)


def test_gradients_match_all_exits_through_the_shared_norm_and_lm_head():
    whole = batch()
    task, plain = next_token(**HALF).train(), model().requires_grad_(True)
    skip = task.layer_skip
    task(whole, DRAWS).loss.backward()
    output = plain.causal(whole.tokens[:, :-1], taps=range(LAYERS + 1), skipped=skipped_rows(skip))
    loss = 0.0
    for tap, weight in skip.weights(DRAWS.step).items():
        logits = plain.compute_logits(output.hidden[tap]).flatten(0, 1)
        loss = loss + weight * F.cross_entropy(logits, whole.tokens[:, 1:].flatten(), reduction="sum")
    loss.backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(task.model.get_parameter(name).grad, parameter.grad, rtol=1e-5, atol=1e-6, msg=name)


def test_exit_logits_match_a_draft_head_without_weights():
    lm, whole = model(), batch()
    head = joint(lm).trained_heads[0].head
    hidden = lm.causal(whole.tokens, taps=(2,)).hidden
    assert torch.equal(head.unroll(whole.tokens, hidden).logits[:, :, 0], lm.compute_logits(hidden[2]))
    assert head.own_state() == {}


@pytest.mark.parametrize("make", [next_token, joint])
def test_evaluation_never_skips(make):
    tasks = [make(model(), **{**HALF, "dropout": dropout}) for dropout in (0.0, 0.6)]
    with torch.no_grad():
        evaluated = [task.eval()(batch(), DRAWS).loss for task in tasks]
        trained = [task.train()(batch(), DRAWS).loss for task in tasks]
    assert evaluated[0] == evaluated[1] == trained[0] != trained[1]


def test_held_out_loss_uses_all_layers():
    class HeldOut:
        rows = 4

        def batch(self, step, rows):
            return batch()

    lm = model()
    task = joint(lm, **HALF).eval()
    wanted = NextToken(model=model())(batch(), DRAWS)
    assert text_loss(task.target, HeldOut()) == pytest.approx(float(wanted.loss.detach()) / 48, rel=1e-6)


@pytest.mark.parametrize("make", [next_token, joint])
def test_skipped_layers_of_a_row_do_not_depend_on_the_micro_batch(make):
    assert_micro_batches_match(lambda: make(model(), **HALF).train(), batch(masked=True, texts=2))


def test_skips_depend_on_step_and_seed_and_not_on_the_heads_stream():
    skip = recipe(dropout=0.6, num_layers=12)
    randomness = [DRAWS, DRAWS, dataclasses.replace(DRAWS, step=6), dataclasses.replace(DRAWS, seed=4)]
    found = [skipped_rows(skip, one) for one in randomness]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2]) and not torch.equal(found[0], found[3])
    for row in range(2):
        own, others = DRAWS.for_target().generator(row), [DRAWS, dataclasses.replace(DRAWS, step=1)]
        assert own.initial_seed() not in {one.generator(at).initial_seed() for one in others for at in range(4)}


def test_head_without_weights_trains_the_target_unless_its_loss_weight_is_zero():
    alone, unweighted, trained = model(), model(), model()
    results = [
        NextToken(model=alone)(batch(), DRAWS),
        joint(unweighted)(batch(), DRAWS),
        joint(trained, weight=1.0)(batch(), DRAWS),
    ]
    for result in results:
        result.loss.backward()
    assert results[1].metrics.keys() == {"target.text"} and "exit.acceptance" in results[2].metrics
    assert_gradients(unweighted, trained, alone)


def test_target_of_a_single_layer_is_refused():
    with pytest.raises(ValueError, match=r"target\.layer_skip: the target has 1 layer, .* 2 at least; give it more"):
        recipe(1)
