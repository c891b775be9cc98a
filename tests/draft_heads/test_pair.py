"""The training forward of heads over pairs: what each draft sees, its labels, and what has a gradient."""

import pytest
import torch

from paceline.draft_heads.unrolled_attention import UnrolledAttention
from tests import tiny
from tests.draft_heads.test_prophet import check_sampled_anchors, make, states
from tests.models.layouts import pair, texts

pytestmark = pytest.mark.one_in(2)

KINDS = {
    "eagle": {},
    "eagle, norms": {"first_norm": True, "normalized": False, "fc_bias": False, "num_layers": 2},
    "eagle, few tokens": {"draft_vocab_size": 40},
    "eagle3": {},
    "eagle3, norms": {"fc_norm": "each", "norm_output": True, "norm_before_residual": True, "qk_norm": True},
    "eagle3, few tokens": {"draft_vocab_size": 40, "num_layers": 2, "attention_bias": True},
    "eagle3, parallel": {"mask_token_id": 7},
    "mtp": {},
    "mtp, few tokens": {"draft_vocab_size": 40},
    "mtp, others": {"embedding_first": True, "normalized": True, "norm_output": False, "zero_first": False},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def head_of(kind, target, **options):
    return make(kind.partition(",")[0], target, **{**KINDS[kind], **options})


@every_kind
def test_every_token_but_the_first_is_a_root_and_weights_are_zero_beyond_the_end(kind):
    _, target = tiny.target()
    head = head_of(kind, target, depth=3, depth_decay=0.5)
    assert head.config.depth_weights == (1, 0.5, 0.25)
    tokens = texts(2, 5)
    found = head.unroll(tokens, states(target, tokens, head))
    size = tiny.VOCAB if head.draft_ids is None else 40
    assert found.logits.shape == (2, 4, 3, size) and found.draft_ids is head.draft_ids
    assert found.position[0].tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 4], [4, 4, 4]]
    assert found.weight[1].tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]


@every_kind
def test_packed_sequences_match_separate_ones(kind):
    _, target = tiny.target()
    head = head_of(kind, target, depth=3)
    tokens = texts(1, 9)
    lengths = (4, 1, 4)
    segment = torch.tensor([[3] * 4 + [7] + [8] * 4])
    parts = tokens.split(lengths, dim=1)
    apart = [states(target, part, head) for part in parts]
    hidden = {tap: torch.cat([one[tap] for one in apart], dim=1) for tap in head.taps}
    together = head.unroll(tokens, hidden, segment=segment)
    assert together.position[0, :, 0].tolist() == list(range(1, 9))
    for start, part, one in ((0, parts[0], apart[0]), (5, parts[2], apart[2])):
        alone = head.unroll(part, one)
        own = slice(start, start + 3)
        assert torch.equal(together.weight[:, own], alone.weight)
        counted = alone.weight > 0
        torch.testing.assert_close(together.logits[:, own][counted], alone.logits[counted], rtol=0, atol=1e-9)
    assert not together.weight[:, 3:5].any(), "a root whose feature is of another sequence"


@every_kind
def test_anchors_are_a_subset_sampled_by_the_generator(kind):
    _, target = tiny.target()
    check_sampled_anchors(head_of(kind, target, depth=3, anchors=4), target, first=1)


@every_kind
@pytest.mark.parametrize("layout", ["grouped", "gpt2", "gemma", "granite", "tied", "olmo2"])
def test_every_own_tensor_gets_a_gradient_and_none_is_the_targets(kind, layout):
    """For targets of every architecture, with detached hidden states."""
    _, target = pair(layout, torch.float64)
    head = head_of(kind, target, depth=3)
    own = {name: tensor for name, tensor in head.own_state().items() if name != "draft_ids"}
    shared = {parameter.data_ptr() for parameter in target.parameters()}
    assert own and not shared & {tensor.data_ptr() for tensor in own.values()}
    tokens = texts(2, 7)
    head.unroll(tokens, states(target, tokens, head)).logits.log_softmax(-1)[..., 3].sum().backward()
    for name, tensor in own.items():
        assert tensor.grad is not None and tensor.grad.abs().max() > 0, name
    assert all(parameter.grad is None for parameter in target.parameters())


@every_kind
def test_a_draft_depends_on_pairs_up_to_its_anchor_and_on_its_own_tokens(kind):
    _, target = tiny.target()
    head = head_of(kind, target, depth=3)
    tokens, begin = texts(1, 9), 2 if kind in ("mtp", "mtp, few tokens") else 1  # whose first pair has no token
    hidden = states(target, tokens, head)
    before = head.unroll(tokens, hidden).logits[0, 4]  # its root is token 5
    for index in range(9):
        changed = {tap: state.clone() for tap, state in hidden.items()}
        for state in changed.values():
            state[:, index] += 1.0
        moved = (head.unroll(tokens, changed).logits[0, 4] - before).abs().amax(-1) > 1e-9
        assert moved.tolist() == [index <= 4] * 3, index
        other = tokens.clone()
        other[0, index] = (tokens[0, index] + 1) % tiny.VOCAB
        moved = (head.unroll(other, hidden).logits[0, 4] - before).abs().amax(-1) > 1e-9
        depths = (0, 0, 0) if "parallel" in kind else range(3)  # where no token that is drafted is read
        assert moved.tolist() == [begin <= index < 6 + depth for depth in depths], index


def test_later_steps_attend_to_the_committed_and_to_their_own_lineage_alone():
    """Against a softmax over keys that are written out one by one."""
    generator = torch.Generator().manual_seed(0)
    anchors = torch.tensor([[0, 2, 3], [1, 4, 4]])
    attend = UnrolledAttention(2, 5, anchors)
    draws = []
    for step in range(3):
        if step:
            attend.advance()
        count = 5 if step == 0 else 3
        wanted = torch.arange(5).expand(2, 5) if step == 0 else anchors + step
        assert torch.equal(attend.positions, wanted)
        query, key, value = (torch.randn(2, count, n, 4, generator=generator).double() for n in (4, 2, 2))
        draws.append((query, key, value, attend(0, query, key, value)))
    for step in (1, 2):
        query, _, _, out = draws[step]
        for row in range(2):
            for index, anchor in enumerate(anchors[row].tolist()):
                for head in range(4):
                    places = [(0, at) for at in range(anchor + 1)] + [(past, index) for past in range(1, step + 1)]
                    keys, values = (torch.stack([draws[s][n][row, at, head // 2] for s, at in places]) for n in (1, 2))
                    shares = (keys @ query[row, index, head] / 2).softmax(0)
                    torch.testing.assert_close(out[row, index, head], shares @ values)


def test_eagles_auxiliary_loss_is_the_distance_to_the_targets_features():
    _, target = tiny.target()
    head = head_of("eagle", target, depth=3, feature_weight=0.5)
    assert head.config.auxiliary_weights == {"feature": 0.5}
    tokens = texts(2, 7)
    hidden = states(target, tokens, head)
    found, features = head.unroll(tokens, hidden), head.feature(hidden)
    torch.testing.assert_close(features, target.norm(hidden[3]))
    logits = torch.nn.functional.linear(features, target.head.weight)
    assert found.auxiliary.keys() == {"feature"} and found.auxiliary["feature"].shape == found.position.shape
    # Logits are of features alone, so those of the target's are its own; where they agree, the distance is 0.
    torch.testing.assert_close(logits, target.causal(tokens).logits)
    with torch.no_grad():
        stream = torch.linalg.lstsq(target.head.weight, found.logits.flatten(0, 2).T).solution.T
    goal = torch.stack([features[row, found.position[row].flatten()] for row in range(2)]).flatten(0, 1)
    distance = torch.nn.functional.smooth_l1_loss(stream, goal, reduction="none").mean(-1)
    torch.testing.assert_close(found.auxiliary["feature"].flatten(), distance)


def test_noise_is_on_what_an_eagle_head_reads_alone_and_as_wide_as_said():
    _, target = tiny.target()
    plain, noisy = (head_of("eagle", target, depth=1, noise=noise) for noise in (0.0, 0.2))
    tokens = texts(1, 8)
    hidden = states(target, tokens, noisy)
    wanted = plain.unroll(tokens, hidden)
    for head, generator in ((plain, torch.Generator()), (noisy, None)):
        found = head.unroll(tokens, hidden, generator=generator)
        assert torch.equal(found.logits, wanted.logits)
    some, same, other = (
        noisy.unroll(tokens, hidden, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(some.logits, same.logits) and not torch.equal(some.logits, other.logits)
    assert not torch.equal(some.logits, wanted.logits)
    features = torch.zeros(400, 8, 32, dtype=torch.float64)
    drawn = noisy.disturbed(features, torch.Generator().manual_seed(0))
    width = 0.2 * 512 / 8
    assert -width / 2 <= drawn.min() < -0.499 * width and 0.499 * width < drawn.max() <= width / 2
    assert drawn.mean().abs() < 0.01 * width and drawn.std() == pytest.approx(width / 12**0.5, rel=0.01)
    # A head that gives the features themselves has no distance to them, whatever it read.
    known = noisy.feature(hidden)
    distance = noisy.auxiliary(known[:, 1:, None], known, torch.arange(1, 8).view(1, 7, 1))
    assert not distance["feature"].any()


@pytest.mark.parametrize("detached", [False, True])
def test_the_gradient_of_a_step_passes_to_the_one_before_unless_detached(detached):
    _, target = tiny.target()
    head, tokens = head_of("eagle", target, depth=3, detach_steps=detached), texts(1, 6)
    seen = []
    run = head.decoder.run_blocks

    def watched(*given):
        seen.append(run(*given))
        seen[-1].retain_grad()
        return seen[-1]

    head.decoder.run_blocks = watched
    found = head.unroll(tokens, states(target, tokens, head))
    head.decoder.run_blocks = run
    found.logits[:, :, 2].square().sum().backward()
    first, second, last = (one.grad for one in seen)
    assert last.abs().max() > 0
    through = [one is not None and one.abs().max() > 0 for one in (first, second)]
    assert through == [not detached] * 2
    whole = head_of("eagle", target, depth=3).unroll(tokens, states(target, tokens, head))
    assert torch.equal(found.logits, whole.logits), "detaching changes gradients alone"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"taps": (0, 4)}, r"taps=\[0, 4\]: the target has 3 layers, so give 0 to 3"),
        ({"hidden_size": 16}, "hidden_size=16: the target's embedding is 32 wide, so give own_embedding: true"),
        ({"mask_token_id": 61}, "mask_token_id=61: the target has 61 tokens"),
        ({"draft_vocab_size": 62}, "draft_vocab_size=62: the target has 61 tokens"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_heads=4 and num_kv_heads=3: give a divisor of the former"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic' is not supported"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        make("eagle3", tiny.target()[1], **options)
