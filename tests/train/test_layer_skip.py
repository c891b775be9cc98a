"""LayerSkip's recipe: which layers a row skips, which exits are learned with what weight, and what that costs."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.train.layer_skip import LayerSkip, LayerSkipSection
from paceline.train.losses import Comparison
from paceline.train.tasks import Heads, NextToken, Trained
from paceline.train.validation import text_loss
from tests import tiny
from tests.train.test_tasks import DRAWS, batch, part_of

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
    comparison = Comparison(terms={"kl": 1.0})
    parts = [Trained(name="exit", head=head, weight=weight)]
    skip = recipe(**fields) if fields else None
    return Heads(target=lm, heads=parts, comparison=comparison, text_weight=1.0, layer_skip=skip)


def skipped_rows(skip, draws=DRAWS):
    """What a step draws for the rows of ``batch()``."""
    return skip.skipped(draws.step, [draws.apart().generator(row) for row in range(4)])


def test_chances_rise_from_none_at_the_first_layer_to_all_at_the_last():
    found = recipe(3, dropout=0.2).chances(0)
    torch.testing.assert_close(found, torch.tensor([0, 0.2 * (2**0.5 - 1), 0.2], dtype=torch.float64))
    assert torch.equal(recipe(3, dropout=0.2).chances(15), found)
    assert float(recipe(2, dropout=0.2).chances(0)[1]) == pytest.approx(0.2)


def test_ramped_chances_rise_with_the_steps_too():
    skip = recipe(3, num_steps=5, dropout=0.2, ramp=True)
    last = [float(skip.chances(step)[-1]) for step in range(5)]
    assert last == pytest.approx([0.2 * (2 ** (step / 4) - 1) for step in range(5)])
    assert skip.skipped(0, []) is None and recipe(3, num_steps=1, ramp=True).skipped(0, []) is None


def test_layers_are_skipped_as_often_as_their_chances_say():
    skip = recipe(dropout=0.5)
    generators = [torch.Generator().manual_seed(seed) for seed in range(4000)]
    share = skip.skipped(0, generators).double().mean(0)
    assert share[0] == 0
    torch.testing.assert_close(share, skip.chances(0), rtol=0, atol=0.03)


def test_weights_grow_with_depth_and_add_up_to_one():
    found = recipe(curriculum="none", exit_scale=0.5).weights(0)
    assert found == pytest.approx({2: 0.5 / 6.5, 3: 1.5 / 6.5, 4: (3 + 1.5) / 6.5})
    assert recipe(curriculum="none", exit_scale=0).weights(0) == {4: 1.0}
    assert recipe(2, curriculum="none", exit_scale=5).weights(0) == {2: 1.0}, "the first layer has no exit of its own"


@pytest.mark.parametrize(("step", "taps"), [(0, {4, 6}), (1, {2, 5, 6}), (2, {3, 6}), (3, {4, 6}), (100, {2, 5, 6})])
def test_a_rotation_learns_each_exit_in_its_turn_and_the_last_layer_always(step, taps):
    found = recipe(6, curriculum="rotational", every=3).weights(step)
    assert found.keys() == taps and sum(found.values()) == pytest.approx(1)


def test_a_gradual_curriculum_goes_from_the_deepest_exit_to_the_first_within_half_of_the_steps():
    skip = recipe(5, num_steps=40, curriculum="gradual")
    found = [set(skip.weights(step)) for step in range(40)]
    assert found == [{5}] * 4 + [{4, 5}] * 4 + [{3, 4, 5}] * 4 + [{2, 3, 4, 5}] * 28


def test_a_skipped_layer_leaves_the_stream_of_its_row_as_it_is_and_no_others():
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
    """The loss of every row and exit by a model of transformers that lacks what is skipped and what lies beyond."""
    layers, total = reference.model.layers, torch.zeros((), dtype=torch.float64)
    for row in range(4):
        tokens = whole.tokens[row : row + 1]
        for tap, weight in weights.items():
            kept = [layers[at] for at in range(tap) if not skipped[row, at]]
            reference.model.layers = torch.nn.ModuleList(kept)
            logits = reference(tokens[:, :-1], use_cache=False).logits[0]
            entropy = F.cross_entropy(logits, tokens[0, 1:], reduction="none")
            total = total + weight * (entropy * whole.learned[row, 1:]).sum()
    reference.model.layers = layers
    return total


def test_the_loss_is_that_of_models_without_what_is_skipped():
    reference = tiny.llama(1, num_hidden_layers=LAYERS)
    whole, task = batch(masked=True), next_token(tiny.native(reference), **HALF)
    skipped, weights = skipped_rows(task.layer_skip), task.layer_skip.weights(DRAWS.step)
    assert skipped.any() and not skipped.all(-1).any() and len(weights) == 3
    result = task.train()(whole, DRAWS)
    wanted = naive(reference, whole, weights, skipped)
    torch.testing.assert_close(result.loss.double(), wanted, rtol=1e-6, atol=1e-5)
    early = {tap: weight / (1 - weights[LAYERS]) for tap, weight in weights.items() if tap < LAYERS}
    sums, count = result.measures["loss.exits"][:, 0]
    torch.testing.assert_close(sums.double(), naive(reference, whole, early, skipped), rtol=1e-6, atol=1e-5)
    assert count == whole.learned[:, 1:].sum()
    last = naive(reference, whole, {LAYERS: 1.0}, skipped)
    torch.testing.assert_close(result.measures["loss.text"][0, 0].double(), last, rtol=1e-6, atol=1e-5)


def test_gradients_are_those_of_all_exits_through_the_shared_norm_and_head():
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


def test_an_exit_is_what_a_head_without_weights_drafts():
    lm, whole = model(), batch()
    head = joint(lm).parts[0].head
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


def test_held_out_text_is_read_by_the_whole_target_alone():
    class HeldOut:
        rows = 4

        def batch(self, step, rows):
            return batch()

    lm = model()
    task = joint(lm, **HALF).eval()
    wanted = NextToken(model=model())(batch(), DRAWS)
    assert text_loss(task.target, HeldOut()) == pytest.approx(float(wanted.loss.detach()) / 48, rel=1e-6)


@pytest.mark.parametrize("make", [next_token, joint])
def test_rows_apart_skip_what_they_skip_in_the_whole_batch(make):
    whole = batch(masked=True, texts=2)
    first, second = make(model(), **HALF).train(), make(model(), **HALF).train()
    result = first(whole, DRAWS)
    result.loss.backward()
    measures = []
    for rows in (slice(0, 1), slice(1, 3), slice(3, 4)):
        one = second(part_of(whole, rows), dataclasses.replace(DRAWS, first_row=rows.start))
        one.loss.backward()
        measures.append(one.measures)
    for name, wanted in result.measures.items():
        torch.testing.assert_close(sum(one[name] for one in measures), wanted)
    for name, parameter in first.trained().items():
        torch.testing.assert_close(second.trained()[name].grad, parameter.grad)


def test_other_steps_and_seeds_skip_others_and_a_head_draws_apart():
    skip = recipe(dropout=0.6, num_layers=12)
    draws = [DRAWS, DRAWS, dataclasses.replace(DRAWS, step=6), dataclasses.replace(DRAWS, seed=4)]
    found = [skipped_rows(skip, one) for one in draws]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2]) and not torch.equal(found[0], found[3])
    for row in range(2):
        own, others = DRAWS.apart().generator(row), [DRAWS, dataclasses.replace(DRAWS, step=1)]
        assert own.initial_seed() not in {one.generator(at).initial_seed() for one in others for at in range(4)}


def test_a_head_without_weights_teaches_the_target_unless_its_own_weight_is_zero():
    alone, silent, taught = model(), model(), model()
    results = [
        NextToken(model=alone)(batch(), DRAWS),
        joint(silent)(batch(), DRAWS),
        joint(taught, weight=1.0)(batch(), DRAWS),
    ]
    for result in results:
        result.loss.backward()
    assert results[1].measures.keys() == {"target.text"} and "exit.acceptance" in results[2].measures
    differs = False
    for name, parameter in alone.named_parameters():
        assert torch.equal(silent.get_parameter(name).grad, parameter.grad), name
        differs |= not torch.allclose(taught.get_parameter(name).grad, parameter.grad)
    assert differs


def test_a_single_layer_has_no_exit():
    with pytest.raises(ValueError, match=r"target\.layer_skip: the target has 1 layer, .* 2 at least; give it more"):
        recipe(1)
