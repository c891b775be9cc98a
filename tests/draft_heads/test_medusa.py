"""The training forward of Medusa heads, their initial weights and their options."""

import pytest
import torch

from paceline.draft_heads.medusa import MedusaConfig, MedusaHead
from paceline.train.config import HeadSection
from paceline.train.setup import build_trained_head
from paceline.train.tasks import DraftHeadTask, StepRandomness
from paceline.train.tasks.losses import DistillationLoss
from tests import tiny
from tests.drafters.feature_heads import new_head
from tests.models.layouts import pair, texts
from tests.train.test_tasks import batch


def states(target, tokens, head):
    with torch.no_grad():
        return target.causal(tokens, taps=head.taps)


@pytest.mark.parametrize("lm_head", ["own", "shared", "target"])
@pytest.mark.parametrize("layout", ["granite", "tied"])
def test_new_heads_repeat_the_targets_last_prediction(layout, lm_head):
    _, target = pair(layout, torch.float64)
    head = new_head("medusa", target, lm_head=lm_head, depth=2)
    tokens = texts(1, 6)
    output = states(target, tokens, head)
    found = head.unroll(tokens, output.hidden).logits
    for depth in range(2):
        torch.testing.assert_close(found[:, 1:, depth], output.logits[:, :-1])


@pytest.mark.parametrize("normalized", [True, False])
def test_logits_are_those_of_the_papers_formula(normalized):
    _, target = tiny.target()
    head = new_head("medusa", target, spread=0.2, depth=2, num_blocks=2, normalized=normalized)
    tokens = texts(1, 5)
    hidden = states(target, tokens, head).hidden
    found = head.unroll(tokens, hidden).logits
    own = head.own_state()
    for depth in range(2):
        x = hidden[3][0, :4]
        x = target.norm(x) if normalized else x
        for block in range(2):
            x = x + torch.nn.functional.silu(
                x @ own[f"blocks.{depth}.{block}.weight"].T + own[f"blocks.{depth}.{block}.bias"]
            )
        torch.testing.assert_close(found[0, 1:, depth], x @ own[f"lm_heads.{depth}.weight"].T)


def test_shared_blocks_are_one_and_run_several_times():
    _, target = tiny.target()
    same = new_head("medusa", target, spread=0.2, num_blocks=3, shared_blocks=True, depth=1)
    assert [name for name in same.own_state() if name.startswith("blocks")] == ["blocks.0.0.weight", "blocks.0.0.bias"]
    apart = new_head("medusa", target, num_blocks=3, depth=1)
    state = dict(same.own_state())
    state |= {f"blocks.0.{at}.{name}": state[f"blocks.0.0.{name}"] for at in (1, 2) for name in ("weight", "bias")}
    apart.load_own_state(state)
    tokens = texts(2, 5)
    hidden = states(target, tokens, same).hidden
    torch.testing.assert_close(same.unroll(tokens, hidden).logits, apart.unroll(tokens, hidden).logits)


def test_logits_of_a_draft_vocabulary_are_those_of_its_tokens():
    _, target = tiny.target()
    whole = new_head("medusa", target, spread=0.2, depth=2)
    part = new_head("medusa", target, depth=2, draft_vocab_size=20)
    ids = torch.arange(3, 61, 3)[:20].sort().values
    ids = torch.cat((ids, torch.tensor([60]))).unique()[:20]
    state = {name: one[ids] if name.startswith("lm_heads") else one for name, one in whole.own_state().items()}
    part.load_own_state({**state, "draft_ids": ids})
    tokens = texts(2, 5)
    hidden = states(target, tokens, whole).hidden
    unrolled = part.unroll(tokens, hidden)
    assert torch.equal(unrolled.draft_ids, ids)
    torch.testing.assert_close(unrolled.logits, whole.unroll(tokens, hidden).logits[..., ids])


def test_the_targets_own_lm_head_has_no_draft_vocabulary():
    config = MedusaConfig(lm_head="target", draft_vocab_size=9)
    with pytest.raises(ValueError, match="draft_vocab_size=9 with lm_head='target', which has all tokens"):
        MedusaHead.make(config, tiny.target()[1], generator=torch.Generator())


def test_losses_of_depths_decay_unless_weights_are_given():
    _, target = tiny.target()
    found = {}
    for name, given in (("default", None), ("paper", (1.0, 0.8, 0.8**2)), ("equal", (1.0, 1.0, 1.0))):
        section = HeadSection(kind="medusa", config={"depth": 3}, depth_weights=given)
        trained = build_trained_head(section, target, seed=0, index=0)
        trained.head.double()
        task = DraftHeadTask(target=target, heads=[trained], loss=DistillationLoss(terms={"kl": 1.0}))
        found[name] = task(batch(), StepRandomness(seed=3, step=5, first_row=0)).loss.item()
    assert found["default"] == pytest.approx(found["paper"], rel=1e-9) and found["default"] != found["equal"]
