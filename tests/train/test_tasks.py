"""Task losses and gradients, for frozen and trained targets, whole batches and micro-batches."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from paceline.draft_heads.block import BlockConfig, BlockHead
from paceline.train.batches import TrainBatch
from paceline.train.tasks import Distillation, DraftHeadTask, NextToken, StepRandomness, TrainedHead
from paceline.train.tasks.losses import DistillationLoss
from paceline.train.tasks.terms import num_learned
from tests import tiny
from tests.train.heads import LastConfig, LastHead, TapConfig, TapHead

ROWS, LENGTH = 4, 12
DRAWS = StepRandomness(seed=3, step=5, first_row=0)


def model(seed=1):
    return tiny.native(tiny.llama(seed))


def batch(*, masked=False, texts=1):
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(tiny.VOCAB, (ROWS, LENGTH + 1), generator=generator)
    learned = torch.ones(ROWS, LENGTH + 1, dtype=torch.bool)
    if masked:
        learned = torch.rand(ROWS, LENGTH + 1, generator=generator) < 0.5
    segment = None if texts == 1 else (torch.arange(LENGTH + 1) * texts // (LENGTH + 1)).expand(ROWS, -1)
    return TrainBatch(tokens=tokens, learned=learned, segment=segment)


def part_of(whole, rows):
    segment = None if whole.segment is None else whole.segment[rows]
    return TrainBatch(tokens=whole.tokens[rows], learned=whole.learned[rows], segment=segment)


def tap(target, **config):
    return TapHead.make(TapConfig(**config), target, generator=torch.Generator().manual_seed(1))


def last(target):
    return LastHead.make(LastConfig(), target, generator=torch.Generator().manual_seed(2))


def heads(target, *, detach=False, target_weight=None, anchors=None, **options):
    trained_heads = [
        TrainedHead(name="tap", head=tap(target, anchors=anchors), detach=detach, **options),
        TrainedHead(name="last", head=last(target), weight=0.5, detach=detach),
    ]
    loss = DistillationLoss(terms={"kl": 1.0})
    return DraftHeadTask(target=target, heads=trained_heads, loss=loss, target_weight=target_weight)


def assert_micro_batches_match(make, whole):
    """Gradients and metrics of the tasks that ``make`` gives."""
    first, second = make(), make()
    result = first(whole, DRAWS)
    result.loss.backward()
    metrics = []
    for rows in (slice(0, 1), slice(1, 3), slice(3, 4)):
        one = second(part_of(whole, rows), dataclasses.replace(DRAWS, first_row=rows.start))
        one.loss.backward()
        metrics.append(one.metrics)
    for name, wanted in result.metrics.items():
        torch.testing.assert_close(sum(one[name] for one in metrics), wanted)
    for name, parameter in first.trained().items():
        torch.testing.assert_close(second.trained()[name].grad, parameter.grad)


def assert_gradients(same, other, wanted):
    """The target's gradients in ``same`` are those in ``wanted``; in ``other`` some are not."""
    differs = False
    for name, parameter in wanted.named_parameters():
        assert torch.equal(same.get_parameter(name).grad, parameter.grad), name
        differs |= not torch.allclose(other.get_parameter(name).grad, parameter.grad)
    assert differs


def test_next_token_loss_matches_transformers():
    reference = tiny.llama(1)
    whole = batch()
    with torch.no_grad():
        wanted = reference(whole.tokens, labels=whole.tokens, use_cache=False).loss.float()
        result = NextToken(model=tiny.native(reference))(whole, DRAWS)
    torch.testing.assert_close(result.loss / ROWS / LENGTH, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(result.rows.sum(), result.loss)
    sums = result.metrics["loss.text"][:, 0]
    torch.testing.assert_close(sums[0] / sums[1], wanted, rtol=1e-6, atol=1e-6)


def test_masked_tokens_have_no_loss():
    whole, lm = batch(masked=True), model()
    logits = lm.causal(whole.tokens[:, :-1]).logits
    entropy = F.cross_entropy(logits.flatten(0, 1).float(), whole.tokens[:, 1:].flatten(), reduction="none")
    wanted = entropy[whole.learned[:, 1:].flatten()].sum()
    torch.testing.assert_close(NextToken(model=lm)(whole, DRAWS).loss, wanted)
    assert num_learned(whole) == whole.learned[:, 1:].sum()


def test_documents_that_share_a_row_have_the_loss_of_separate_rows():
    whole, lm = batch(texts=2), model()
    separate = torch.zeros(())
    for number in (0, 1):
        text = whole.tokens[:, whole.segment[0] == number]
        alone = TrainBatch(tokens=text, learned=torch.ones_like(text, dtype=torch.bool))
        separate = separate + NextToken(model=lm)(alone, DRAWS).loss
    torch.testing.assert_close(NextToken(model=lm)(whole, DRAWS).loss, separate)
    assert num_learned(whole) == ROWS * (LENGTH - 1)


def test_draft_equal_to_its_target_has_zero_loss():
    target = model()
    loss = DistillationLoss(terms={"kl": 1.0})
    same = Distillation(target=target, draft=model(), loss=loss)(batch(), DRAWS)
    other = Distillation(target=target, draft=model(2), loss=loss)(batch(), DRAWS)
    assert same.loss.abs() < 1e-3 and other.loss > 1
    for name in ("draft.acceptance", "draft.greedy"):
        torch.testing.assert_close(same.metrics[name][0], same.metrics[name][1])
        assert other.metrics[name][0] < other.metrics[name][1]


def test_distillation_loss_is_the_kl_divergence_at_learned_tokens():
    whole, target, draft = batch(masked=True), model(), model(2)
    p = target.causal(whole.tokens[:, :-1]).logits.softmax(-1)
    q = draft.causal(whole.tokens[:, :-1]).logits.softmax(-1)
    wanted = ((p * (p / q).log()).sum(-1) * whole.learned[:, 1:]).sum()
    found = Distillation(target=target, draft=draft, loss=DistillationLoss(terms={"kl": 1.0}))(whole, DRAWS)
    torch.testing.assert_close(found.loss.double(), wanted, rtol=1e-5, atol=1e-4)


def test_distillation_trains_only_the_draft():
    target = model().requires_grad_(False)
    task = Distillation(target=target, draft=model(2), loss=DistillationLoss(terms={"kl": 0.5, "argmax": 0.5}))
    task(batch(), DRAWS).loss.backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in task.trained().values())
    assert len(task.trained()) == len(list(task.draft.parameters()))


def test_frozen_target_has_no_trained_parameters():
    target = model()
    task = heads(target)
    task(batch(), DRAWS).loss.backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert {name.split(".")[1] for name in task.trained()} == {"tap", "last"}
    assert all(parameter.grad is not None for parameter in task.trained().values())


@pytest.mark.parametrize("masked", [False, True])
def test_head_loss_is_the_mean_over_anchors_and_depths(masked):
    target, whole = model(), batch(masked=masked)
    head = last(target)
    task = DraftHeadTask(
        target=target, heads=[TrainedHead(name="last", head=head)], loss=DistillationLoss(terms={"kl": 1.0})
    )
    p = target.causal(whole.tokens[:, :-1]).logits.softmax(-1)
    q = head.table(whole.tokens[:, :-1]).softmax(-1)
    learned = whole.learned[:, 1:]
    each = (p * (p / q).log()).sum(-1) * learned  # the same for all depths, by position
    count = torch.tensor([min(at + 1, 3) for at in range(LENGTH)])  # drafts that reach a position
    result = task(whole, DRAWS)
    torch.testing.assert_close(result.loss.double(), (each * count).sum() / 3, rtol=1e-5, atol=1e-4)
    sums = result.metrics["last.loss"]
    depths = torch.stack([each[:, depth:].sum() for depth in range(3)])
    torch.testing.assert_close(sums[0].double(), depths, rtol=1e-5, atol=1e-4)
    assert sums[1].tolist() == [int(learned[:, depth:].sum()) for depth in range(3)]


@pytest.mark.parametrize("anchors", [None, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_micro_batches_match_the_whole_batch(anchors, masked):
    """In loss, gradients and metrics, with random anchors too."""
    make = lambda: heads(model(), target_weight=1.0, anchors=anchors)  # noqa: E731
    assert_micro_batches_match(make, batch(masked=masked, texts=2))


def test_anchors_depend_on_step_and_seed():
    task, whole = heads(model(), anchors=4), batch()
    losses = [
        task(whole, randomness).loss.item()
        for randomness in (DRAWS, DRAWS, dataclasses.replace(DRAWS, step=6), dataclasses.replace(DRAWS, seed=4))
    ]
    assert losses[0] == losses[1] and len(set(losses)) == 3


def test_detached_heads_do_not_change_the_targets_gradients():
    whole = batch()
    alone, detached, joint = model(), model(), model()
    NextToken(model=alone)(whole, DRAWS).loss.backward()
    heads(detached, detach=True, target_weight=1.0)(whole, DRAWS).loss.backward()
    heads(joint, detach=False, target_weight=1.0)(whole, DRAWS).loss.backward()
    assert_gradients(detached, joint, alone)


def test_precomputed_hidden_states_replace_the_targets_forward():
    target, whole = model(), batch()
    wanted = heads(target)(whole, DRAWS)
    output = target.causal(whole.tokens[:, :-1], taps=(2, 3))
    given = dataclasses.replace(whole, hidden={tap: state.detach() for tap, state in output.hidden.items()})
    task = heads(target)
    target.causal = None  # the forward pass must not run
    torch.testing.assert_close(task(given, DRAWS), wanted)


def test_depth_weights_are_relative():
    whole = batch()
    losses = [
        heads(model(), depth_weights=weights)(whole, DRAWS).loss.item()
        for weights in (None, (1.0, 1.0, 1.0), (5.0, 5.0, 5.0), (1.0, 0.5, 0.0))
    ]
    assert losses[0] == pytest.approx(losses[1]) == pytest.approx(losses[2])
    assert losses[3] != pytest.approx(losses[0])
    with pytest.raises(ValueError, match="2 depth weights for the head 'tap', which learns 3 depths"):
        heads(model(), depth_weights=(1.0, 1.0))(whole, DRAWS)


class AuxiliaryConfig(LastConfig):
    draft_vocab_size: int | None = 20

    @property
    def auxiliary_weights(self):
        return {"size": 0.25}


class AuxiliaryHead(LastHead):
    """Predicts a few tokens, with losses of its own: one with a weight, one without."""

    def unroll(self, tokens, hidden, *, segment=None, learned=None, generator=None):
        whole = super().unroll(tokens, hidden, segment=segment, learned=learned, generator=generator)
        ids = torch.arange(0, 60, 3)
        logits = whole.logits[..., ids]
        losses = {"size": logits.square().mean(-1), "first": logits[..., 0]}
        return dataclasses.replace(whole, logits=logits, draft_ids=ids, auxiliary=losses)


def test_auxiliary_losses_are_added_with_their_weights_and_logged():
    target, whole = model(), batch(masked=True)
    head = AuxiliaryHead.make(AuxiliaryConfig(), target, generator=torch.Generator().manual_seed(2))
    task = DraftHeadTask(
        target=target,
        heads=[TrainedHead(name="aux", head=head, weight=2.0, depth_weights=(3.0, 2.0, 1.0))],
        loss=DistillationLoss(terms={"kl": 1.0}),
    )
    found = task(whole, DRAWS)
    metrics = found.metrics
    weights = torch.tensor([1.5, 1.0, 0.5])
    means = {name: sums for name, (sums, _) in metrics.items()}
    assert metrics.keys() == {f"aux.{name}" for name in ("loss", "acceptance", "greedy", "size", "first")}
    scale = LENGTH / (LENGTH * 3)
    added = means["aux.loss"] + 0.25 * means["aux.size"] + means["aux.first"]
    torch.testing.assert_close(found.loss, 2.0 * scale * added.sum())
    counts = metrics["aux.size"][1]
    torch.testing.assert_close(counts, metrics["aux.loss"][1])
    reached = torch.stack([whole.learned[:, 1 + depth :].sum() for depth in range(3)])
    torch.testing.assert_close(counts, weights * reached)


def test_a_block_head_learns_no_token_after_the_first_without_a_loss_and_how_sure_it_is():
    target, whole = model(), batch(masked=True)
    config = BlockConfig(block_size=4, num_layers=1, anchors=None, confidence=True, confidence_weight=0.5, gamma=2.0)
    head = BlockHead.make(config, target, generator=torch.Generator().manual_seed(1))
    loss = DistillationLoss(terms={"kl": 1.0})
    result = DraftHeadTask(target=target, heads=[TrainedHead(name="block", head=head)], loss=loss)(whole, DRAWS)
    tokens = whole.tokens[:, :-1]
    output = target.causal(tokens, taps=head.taps)
    found = head.unroll(tokens, output.hidden)
    wanted, count = torch.zeros((), dtype=torch.float64), torch.zeros(3)
    for row in range(len(tokens)):
        for anchor in range(tokens.shape[1]):
            for depth in range(3):
                at = anchor + depth
                if at >= tokens.shape[1] or not whole.learned[row, at + 1]:
                    break
                p, q = output.logits[row, at].softmax(-1), found.logits[row, anchor, depth].softmax(-1)
                accepted, sure = torch.minimum(p, q).sum(), found.confidence[row, anchor, depth].sigmoid()
                entropy = -accepted * sure.log() - (1 - accepted) * (1 - sure).log()
                wanted += math.exp(-depth / 2) / 3 * ((p * (p / q).log()).sum() + 0.5 * entropy)
                count[depth] += math.exp(-depth / 2)
    torch.testing.assert_close(result.loss.double(), wanted.detach(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(result.metrics["block.confidence"][1], count)
    assert count[2] < count[0] * math.exp(-1)
