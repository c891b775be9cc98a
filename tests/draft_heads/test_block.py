"""The training forward of block heads: what each slot sees, and its labels and weights."""

import copy
import math

import pytest
import torch

from paceline.draft_heads.block import BlockConfig, BlockHead
from paceline.draft_heads.block_config import default_taps
from paceline.draft_heads.markov import MARKOV_HEADS
from tests import tiny
from tests.draft_heads.test_prophet import make, states
from tests.models.layouts import pair, texts

pytestmark = pytest.mark.one_in(2)

SIZES = dict(block_size=4, num_layers=2)
LAYOUTS = {
    "own mask": {},
    "anchor first": dict(anchor_first=True, block_size=3),
    "mask token": dict(mask_token_id=60, taps=(3, 1)),
    "draft vocabulary": dict(draft_vocab_size=40, markov_rank=3),
    "confidence": dict(confidence=True),
    "markov": dict(anchor_first=True, block_size=3, markov_rank=5, confidence=True),
    "gated": dict(markov_rank=5, markov_head="gated", confidence=True),
    "rnn": dict(anchor_first=True, block_size=3, markov_rank=5, markov_head="rnn"),
    "refiner": dict(markov_rank=5, markov_head="refiner"),
    "bilinear, convolutions": dict(markov_rank=5, markov_head="bilinear", conv_taps=2, conv_group_size=8),
    "plain attention": dict(qk_norm=False, attention_bias=True, num_kv_heads=4, taps=(0,)),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def head_of(layout, target=None):
    return make("block", target or tiny.target()[1], **{**SIZES, **LAYOUTS[layout]})


@every_layout
def test_every_token_is_an_anchor_and_weights_decay_and_end_with_the_sequence(layout):
    _, target = tiny.target()
    head = head_of(layout)
    tokens = texts(2, 5)
    found = head.unroll(tokens, states(target, tokens, head))
    assert found.logits.shape == (2, 5, 3, 40 if layout == "draft vocabulary" else tiny.VOCAB)
    assert found.position[0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 4], [4, 4, 4]]
    decay = [math.exp(-depth / 4) for depth in range(3)]
    inside = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]])
    torch.testing.assert_close(found.weight[1], inside * torch.tensor(decay))
    assert found.stops_at_unlearned


@every_layout
def test_packed_sequences_match_separate_ones(layout):
    _, target = tiny.target()
    head = head_of(layout)
    tokens, lengths = texts(1, 9), (4, 1, 4)
    segment = torch.tensor([[3] * 4 + [7] + [8] * 4])
    parts = tokens.split(lengths, dim=1)
    apart = [states(target, part, head) for part in parts]
    hidden = {tap: torch.cat([one[tap] for one in apart], dim=1) for tap in head.taps}
    together = head.unroll(tokens, hidden, segment=segment)
    alone = [head.unroll(part, one) for part, one in zip(parts, apart, strict=True)]
    weight = torch.cat([one.weight for one in alone], dim=1)
    assert torch.equal(together.weight, weight)
    logits = torch.cat([one.logits for one in alone], dim=1)
    torch.testing.assert_close(together.logits[weight > 0], logits[weight > 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_anchors_are_a_subset_sampled_by_the_generator_and_unrolled_in_chunks(chunk, monkeypatch):
    _, target = tiny.target()
    head = make("block", target, anchors=4, **SIZES)
    tokens = texts(3, 11)
    hidden = states(target, tokens, head)
    whole = head.unroll(tokens, hidden)
    assert whole.logits.shape[1] == 11
    monkeypatch.setattr("paceline.draft_heads.block.CHUNK", chunk)
    some, same, other = (
        head.unroll(tokens, hidden, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    roots = some.position[..., 0]
    assert roots.shape == (3, 4) and (roots.diff(dim=1) > 0).all()
    assert torch.equal(roots, same.position[..., 0]) and not torch.equal(roots, other.position[..., 0])
    for row in range(3):
        torch.testing.assert_close(some.logits[row], whole.logits[row, roots[row]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 64])
@pytest.mark.parametrize(
    ("layout", "kind"),
    [("grouped", "gated"), ("gpt2", "rnn"), *((one, "vanilla") for one in ("gemma", "granite", "tied", "olmo2"))],
)
def test_every_own_tensor_gets_a_gradient_and_none_is_the_targets(layout, kind, chunk, monkeypatch):
    """For targets of every architecture, with detached hidden states; in chunks as at once."""
    monkeypatch.setattr("paceline.draft_heads.block.CHUNK", chunk)
    _, target = pair(layout, torch.float64)
    head = make("block", target, markov_rank=3, markov_head=kind, confidence=True, **SIZES)
    own = head.own_state()
    shared = {parameter.data_ptr() for parameter in target.parameters()}
    assert own and not shared & {tensor.data_ptr() for tensor in own.values()}
    tokens = texts(2, 7)
    found = head.unroll(tokens, states(target, tokens, head))
    (found.logits.log_softmax(-1)[..., 3].sum() + found.confidence.sigmoid().sum()).backward()
    for name, tensor in own.items():
        assert tensor.grad is not None and tensor.grad.abs().max() > 0, name
    assert all(parameter.grad is None for parameter in target.parameters())


WITHOUT_MARKOV = [layout for layout in LAYOUTS if "markov_rank" not in LAYOUTS[layout]]


@pytest.mark.parametrize("layout", WITHOUT_MARKOV)
def test_a_block_sees_its_anchor_and_the_states_before_it_alone(layout):
    """Not the tokens that it predicts, nor what the target made of them or of the anchor."""
    _, target = tiny.target()
    head = head_of(layout)
    tokens = texts(1, 9)
    hidden = states(target, tokens, head)
    before = head.unroll(tokens, hidden).logits[0, 5]
    for index in range(9):
        for tap in head.taps:
            changed = {**hidden, tap: hidden[tap].clone()}
            changed[tap][:, index] += 1.0
            moved = (head.unroll(tokens, changed).logits[0, 5] - before).abs().amax(-1) > 1e-9
            assert moved.tolist() == [index < 5] * 3, (tap, index)
        other = tokens.clone()
        other[0, index] = (tokens[0, index] + 1) % 60
        moved = (head.unroll(other, hidden).logits[0, 5] - before).abs().amax(-1) > 1e-9
        assert moved.tolist() == [index == 5] * 3, index


@pytest.mark.parametrize(
    ("kind", "with_markov"), [("vanilla", False), ("vanilla", True), ("gated", True), ("rnn", True)]
)
def test_a_markov_head_reads_the_token_before_and_confidence_never_the_token_itself(kind, with_markov):
    """Depth d predicts token 6 + d. One with a recurrent state reads all tokens of the block before it."""
    _, target = tiny.target()
    more = {"confidence_with_markov": with_markov, "markov_head": kind}
    head = make("block", target, **{**SIZES, **LAYOUTS["markov"], **more})
    tokens = texts(1, 9)
    hidden = states(target, tokens, head)
    before = head.unroll(tokens, hidden)
    for index in range(9):
        other = tokens.clone()
        other[0, index] = (tokens[0, index] + 1) % 60
        found = head.unroll(other, hidden)
        moved = (found.logits - before.logits)[0, 5].abs().amax(-1) > 1e-9
        read = [range(5, 6 + depth) if kind == "rnn" else (5, 5 + depth) for depth in range(3)]
        assert moved.tolist() == [index in one for one in read], index
        moved = (found.confidence - before.confidence)[0, 5].abs() > 1e-9
        assert moved.tolist() == [index == 5 or (with_markov and index == 5 + depth) for depth in range(3)], index


def test_what_a_markov_head_cannot_be_is_refused():
    _, target = tiny.target()
    with pytest.raises(ValueError, match="markov_head\n  Input should be 'vanilla', 'gated', 'rnn', 'bilinear'"):
        make("block", target, markov_head="lstm", markov_rank=2)
    with pytest.raises(ValueError, match=r"confidence_with_markov and no matrix .* give markov_rank too"):
        make("block", target, confidence=True, confidence_with_markov=True)
    with pytest.raises(ValueError, match="candidates=3 and nothing that chooses among them: give markov_rank too"):
        make("block", target, candidates=3)
    with pytest.raises(ValueError, match="conv_taps=5: a block has 4 slots; give no more"):
        make("block", target, conv_taps=5, block_size=4)
    with pytest.raises(ValueError, match="conv_group_size=5: give a divisor of the target's width, 32"):
        make("block", target, conv_taps=2, conv_group_size=5)


@pytest.mark.parametrize("kind", MARKOV_HEADS)
def test_a_new_markov_head_adds_nothing(kind):
    _, target = tiny.target()
    head = BlockHead.make(BlockConfig(markov_rank=2, markov_head=kind), target, generator=torch.Generator())
    hidden, known = torch.ones(3, 8, head.hidden_size, dtype=target.dtype), torch.ones(3, 2, dtype=torch.int64)
    assert not head.markov.unroll(torch.arange(6).view(3, 2), hidden, known).any()


@every_layout
def test_mixed_precision_trains_every_part(layout):
    _, target = tiny.target()
    target = copy.deepcopy(target).to(torch.bfloat16)
    head, tokens = head_of(layout, target).float(), texts(2, 7)
    for tensor in head.own_state().values():
        tensor.requires_grad_(tensor.is_floating_point())
    with torch.autocast("cpu", torch.bfloat16):
        found = head.unroll(tokens, states(target, tokens, head))
    loss = found.logits.float().logsumexp(-1).sum() + (0 if found.confidence is None else found.confidence.sum())
    loss.backward()
    for name, part in head.own_state().items():
        assert not part.requires_grad or (part.grad is not None and part.grad.isfinite().all()), name


@pytest.mark.parametrize("first", [False, True])
def test_convolutions_read_the_slots_before_in_the_same_block_alone(first):
    """A new head drafts as one without them; then a slot hears of those before it by ``conv_taps`` - 1."""
    _, target = tiny.target()
    tokens = torch.randint(60, (2, 9), generator=torch.Generator().manual_seed(3))
    hidden = {tap: state for tap, state in target.causal(tokens, taps=(1, 3)).hidden.items()}
    options = dict(taps=(1, 3), num_layers=1, block_size=4, anchor_first=first, anchors=None)
    with_them, without = (
        BlockHead.make(BlockConfig(**options, **one), target, generator=torch.Generator().manual_seed(0))
        for one in (dict(conv_taps=3, conv_group_size=8), {})
    )
    state = with_them.own_state()
    without.load_own_state({name: part for name, part in state.items() if "_conv" not in name})
    assert torch.equal(with_them.unroll(tokens, hidden).logits, without.unroll(tokens, hidden).logits)
    conv = with_them.decoder.blocks[0].ffn_conv
    generator = torch.Generator().manual_seed(0)
    for part in (conv.base, conv.project.weight):
        part.data = torch.randn(part.shape, generator=generator, dtype=part.dtype)
    x = torch.randn(8, 32, generator=generator, dtype=conv.base.dtype)
    kernel, _ = conv.kernels(x)
    out = conv(x, kernel)
    made = (conv.project(x).view(8, 2, 3, 4)[:, 0]).repeat_interleave(8, -1) + conv.base[0]
    for slot in range(8):
        reach = min(2, slot % 4)
        wanted = sum(made[slot, tap] * x[slot - tap] for tap in range(reach + 1))
        torch.testing.assert_close(out[slot], wanted)


def test_the_order_of_taps_is_that_in_which_they_are_concatenated():
    _, target = tiny.target()
    one, other = (make("block", target, taps=taps, **SIZES) for taps in ((1, 3), (3, 1)))
    state = one.own_state()
    other.load_own_state({**state, "fc.weight": torch.cat(state["fc.weight"].chunk(2, dim=1)[::-1], dim=1)})
    tokens = texts(1, 6)
    hidden = states(target, tokens, one)
    torch.testing.assert_close(one.unroll(tokens, hidden).logits, other.unroll(tokens, hidden).logits)


def test_what_is_left_to_the_target_is_in_its_config():
    _, target = tiny.target()  # 4 heads and 2 key-value heads of 8, 48 inner, 32 wide, of 128 positions
    head = BlockHead.make(BlockConfig(), target, generator=torch.Generator())
    found = head.config
    assert (found.taps, found.num_heads, found.num_kv_heads, found.head_dim) == ((1, 2, 3), 4, 2, 8)
    assert (found.ffn_size, found.max_positions, found.depth, found.trained_depth) == (48, 128, 7, 7)
    assert [default_taps(layers) for layers in (2, 7, 8, 36)] == [
        (1, 2),
        (3, 4, 5, 6, 7),
        (2, 3, 4, 5, 6),
        (2, 10, 18, 26, 34),
    ]


def test_kinds_of_rope_scale_frequencies():
    _, target = tiny.target()
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    plain, scaled = (BlockConfig(head_dim=8, rope=one) for one in (BlockConfig().rope, rope))
    halves = [frequency / 2 for frequency in plain.resolved(target.config).rotary().inverse_frequencies]
    assert scaled.resolved(target.config).rotary().inverse_frequencies == pytest.approx(halves)
    with pytest.raises(ValueError, match="rope scaling 'dynamic' is not supported"):
        BlockConfig(rope={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}).resolved(target.config)
