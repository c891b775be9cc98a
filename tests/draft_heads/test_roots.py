"""Where training drafts begin: at learned tokens, and with LM heads that are the target's rows."""

import pytest
import torch

from paceline.draft_heads import DRAFT_HEADS
from paceline.draft_heads.early_exit import _place
from paceline.draft_heads.layers import sample_anchors
from tests import tiny
from tests.draft_heads.test_prophet import states
from tests.models.layouts import pair, texts

LENGTH = 16
ANCHORED = ("prophet", "linear_prophet", "medusa", "mlp_speculator", "hydra", "eagle", "eagle3", "block")
OF_ROWS = {
    "medusa": {},
    "hydra": {},
    "eagle3": {},
    "block": {"block_size": 3},
}


def new(kind, target, **options):
    generator = torch.Generator().manual_seed(0)
    return DRAFT_HEADS.find(kind).make(DRAFT_HEADS.find(kind).Config(**options), target, generator=generator)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_roots_are_learned_and_their_losses_are_on_average_those_of_all():
    learned = torch.zeros(3, LENGTH, dtype=torch.bool)
    learned[0, 3:13], learned[1, [2, 9]] = True, True
    values = torch.rand(3, LENGTH, generator=seeded(1), dtype=torch.float64)
    wanted = (values * learned).sum(-1)
    total = torch.zeros(3, dtype=torch.float64)
    for seed in range(3000):
        roots, weight = sample_anchors(learned, 4, seeded(seed))
        assert (roots.diff(dim=1) > 0).all()
        assert torch.equal(weight > 0, learned.gather(1, roots))
        total += (values.gather(1, roots) * weight).sum(-1) * LENGTH / 4
    assert (weight > 0).sum(-1).tolist() == [4, 2, 0]
    torch.testing.assert_close(total[1:] / 3000, wanted[1:].double())  # fewer than 4: all of them, always
    torch.testing.assert_close(total[0] / 3000, wanted[0].double(), rtol=0.02, atol=0)
    roots, weight = sample_anchors(learned, None, None)
    torch.testing.assert_close((values.gather(1, roots) * weight).sum(-1), wanted)
    assert torch.equal(sample_anchors(torch.ones_like(learned), 4, seeded(0))[1], torch.ones(3, 4))


@pytest.mark.parametrize("kind", ANCHORED)
def test_drafts_begin_at_learned_tokens_alone(kind):
    _, target = tiny.target()
    tokens = texts(2, LENGTH)
    learned = torch.zeros(2, LENGTH, dtype=torch.bool)
    learned[0, 4:9], learned[1, 12:] = True, True
    for anchors in (4, None):
        head = new(kind, target, anchors=anchors)
        hidden = states(target, tokens, head)
        for seed in range(5):
            found = head.unroll(tokens, hidden, learned=learned, generator=seeded(seed))
            begins = found.position[..., 0]
            assert torch.equal(found.weight[..., 0] > 0, learned.gather(1, begins))
            assert (found.weight[..., 0] > 0).sum(-1).tolist() == ([4, 4] if anchors else [5, 4])


def test_a_pair_of_two_sequences_takes_no_root():
    _, target = tiny.target()
    head, tokens = new("eagle", target, anchors=6), texts(1, 8)
    segment = torch.arange(8)[None] // 4
    for seed in range(5):
        found = head.unroll(tokens, states(target, tokens, head), segment=segment, generator=seeded(seed))
        assert found.position[0, :, 0].tolist() == [1, 2, 3, 5, 6, 7]
        torch.testing.assert_close(found.weight[0, :, 0], torch.full((6,), 6 / 7))


def test_crops_are_at_learned_tokens():
    learned = torch.zeros(3, LENGTH, dtype=torch.bool)
    learned[0, 5:9], learned[1] = True, True
    drawn = torch.arange(LENGTH)
    places = [_place(drawn[at].expand(3, 1), learned)[:, 0].tolist() for at in range(LENGTH)]
    first, second, none = (list(row) for row in zip(*places, strict=True))
    assert [first.count(at) for at in range(5, 9)] == [4, 4, 4, 4]
    assert second == none == drawn.tolist()


@pytest.mark.parametrize("kind", OF_ROWS)
@pytest.mark.parametrize("layout", ["grouped", "tied", "granite"])
def test_new_lm_heads_are_the_targets_rows_of_the_draft_vocabulary(kind, layout):
    """Also after the vocabulary was chosen; granite divides its logits."""
    _, target = pair(layout, torch.float64)
    head = new(kind, target, draft_vocab_size=6, **OF_ROWS[kind])
    heads = head.lm_heads_of_rows
    assert heads
    for wanted in (torch.arange(6), torch.tensor([1, 2, 5, 30, 31, 40])):
        head.begin_vocab(wanted, target)
        rows = torch.nn.functional.linear(torch.eye(target.config.hidden_size, dtype=torch.float64), _head_of(target))
        rows = rows.T[wanted] / target.logits_divisor
        assert all(torch.equal(one.weight, rows) for one in heads)
    if kind == "eagle3":
        assert torch.equal(head.decoder.norm.weight, target.norm.weight) and target.norm.weight.std() > 0
    whole = new(kind, target, **OF_ROWS[kind])
    assert all(len(one.weight) == target.vocab_size for one in whole.lm_heads_of_rows)
    assert bool(whole.lm_heads_of_rows) == (kind != "block"), "a block head without a draft vocabulary has none"


@pytest.mark.parametrize("kind", ["eagle", "mtp", "prophet", "linear_prophet", "early_exit"])
@pytest.mark.parametrize("layout", ["grouped", "tied", "granite"])
def test_heads_without_an_lm_head_of_rows_read_those_of_a_draft_vocabulary(kind, layout):
    """In training, and as a drafter runs them; granite divides its logits."""
    _, target = pair(layout, torch.float64)
    sizes = {"exit_layer": 1} if kind == "early_exit" else {}
    whole, few, ids = new(kind, target, **sizes), new(kind, target, **sizes, draft_vocab_size=6), torch.arange(1, 41, 7)
    few.load_own_state({**whole.own_state(), "draft_ids": ids})
    assert not few.lm_heads_of_rows and whole.drafting_decoder is whole.decoder
    tokens = texts(1, 9)
    hidden = states(target, tokens, whole)
    wanted, found = whole.unroll(tokens, hidden), few.unroll(tokens, hidden)
    torch.testing.assert_close(found.logits, wanted.logits[..., ids])
    assert torch.equal(found.draft_ids, ids) and found.logits.std() > 0
    stream = hidden[whole.taps[0]]
    read = few.drafting_decoder.compute_logits(stream)
    torch.testing.assert_close(read, whole.decoder.compute_logits(stream)[..., ids])


def _head_of(target):
    return (target.embed if target.head is None else target.head).weight


def test_an_lm_head_of_another_width_and_a_head_without_a_draft_vocabulary_stay():
    _, target = tiny.target()
    narrow = new("eagle3", target, hidden_size=16, own_embedding=True, draft_vocab_size=6)
    before = narrow.decoder.head.weight.clone()
    narrow.begin_vocab(torch.arange(6), target)
    assert torch.equal(narrow.decoder.head.weight, before) and before.std() > 0
    with pytest.raises(ValueError, match="drafts the target's whole vocabulary: give it a draft_vocab_size"):
        new("eagle3", target).begin_vocab(torch.arange(6), target)
