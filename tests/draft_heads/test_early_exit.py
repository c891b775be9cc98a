"""The early-exit draft head: shared modules, own weights, and its training forward."""

import pytest
import torch
from torch import nn

from paceline.core.registry import Registry
from paceline.draft_heads import DRAFT_HEADS
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from tests import tiny as models
from tests.models.layouts import pair, texts

LAYERS = 3


def make(target=None, **options):
    config = EarlyExitConfig(**{"exit_layer": 1, **options})
    return EarlyExitHead.make(config, target or models.target()[1], generator=torch.Generator().manual_seed(0))


def perturbed(head):
    """``head`` with noise on all its own weights, because a new head ignores recycled states."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for part in head.own_state().values():
            part.add_(0.3 * torch.randn(part.shape, generator=generator))
    return head


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def states(head, tokens):
    with torch.no_grad():
        return models.target()[1].causal(tokens, taps=head.taps).hidden


def test_registry_finds_the_head_by_name():
    assert isinstance(DRAFT_HEADS, Registry) and DRAFT_HEADS.find("early_exit") is EarlyExitHead


def test_shared_modules_are_the_targets_and_not_saved():
    target = models.target()[1]
    head = make(own_norm=False, num_blocks=2)
    decoder = head.decoder
    assert decoder.embed is target.embed and decoder.head is target.head and decoder.norm is target.norm
    assert decoder.num_layers == 2 and all(name.startswith(("blocks.0.", "blocks.1.")) for name in head.own_state())
    own = make(own_head=True)
    assert own.decoder.head is not target.head and torch.equal(own.decoder.head.weight, target.head.weight)
    assert {"norm.weight", "head.weight"} < set(own.own_state())
    assert not {part.data_ptr() for part in own.own_state().values()} & {p.data_ptr() for p in target.parameters()}


@pytest.mark.parametrize("own_head", [False, True])
def test_tied_lm_head_uses_the_targets_embedding_or_a_copy(own_head):
    _, target = pair("tied", torch.float64)
    head = make(target, own_head=own_head, num_blocks=0)
    hidden = torch.randn(1, 4, 32, generator=seeded(1), dtype=torch.float64)
    wanted = nn.functional.linear(target.norm(hidden.flatten(0, 1)), target.embed.weight)[None]
    torch.testing.assert_close(head.decoder.causal_from_embeds(hidden).logits, wanted)
    assert (head.decoder.head is None) is not own_head


@pytest.mark.parametrize("layout", ["grouped", "gpt2", "gemma", "gpt_neox", "olmo2", "qwen3", "smollm3", "granite"])
def test_new_blocks_have_small_matrices_and_the_targets_norms(layout):
    _, target = pair(layout)
    head = make(target, num_blocks=2)
    for name, part in head.own_state().items():
        if "norm" in name:
            source = name.replace("blocks.0", "blocks.1") if name.startswith("blocks.0") else name
            source = name.replace("blocks.1", "blocks.2") if name.startswith("blocks.1") else source
            assert torch.equal(part, target.get_parameter(source))
        elif part.dim() == 1:
            assert not part.any()
        else:
            scale = 0.01 if name.endswith(("output.weight", "down.weight")) else 0.02
            assert float(part.detach().std()) == pytest.approx(scale, rel=0.1)
    assert head.own_state()["blocks.0.attention.qkv.weight"].dtype == target.dtype


def test_initialisation_is_deterministic_by_seed():
    one, same = (make().own_state() for _ in range(2))
    assert all(torch.equal(one[name], same[name]) for name in one)


@pytest.mark.parametrize("exit_layer", [LAYERS, 9])
def test_exit_layer_after_the_last_layer_is_refused(exit_layer):
    with pytest.raises(ValueError, match=f"exit_layer={exit_layer}: the target has 3 layers, so give at most 2"):
        make(exit_layer=exit_layer)


@pytest.mark.parametrize("wrong", [dict(exit_layer=0), dict(num_blocks=-1), dict(max_age=0), dict(blocks=2)])
def test_invalid_config_fields_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make(**wrong)


def test_own_state_is_loaded_and_mismatches_are_named():
    one, other = perturbed(make(recycle=True)), make(recycle=True)
    kept = {name: tensor.clone() for name, tensor in one.own_state().items()}
    other.load_own_state(kept)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in other.own_state().items())
    misnamed = {name.replace("norm.weight", "norm.scale"): t for name, t in kept.items() if "blocks" not in name}
    blocks = {name: t for name, t in kept.items() if "blocks" in name}
    with pytest.raises(ValueError, match=r"missing \['norm.weight', 're.*'\], unexpected \['norm.scale', 're.*'\]"):
        other.load_own_state({**blocks, **misnamed})
    with pytest.raises(ValueError, match=r"norm.weight has shape \(5,\), its config says \(32,\)"):
        other.load_own_state({**kept, "norm.weight": torch.zeros(5)})


def test_every_token_is_an_anchor_that_predicts_the_next():
    """With the target's remaining blocks, the logits equal the target's."""
    target = models.target()[1]
    head = make(num_blocks=2)
    copies = {f"blocks.{i}.{name}": value for i in range(2) for name, value in target.blocks[1 + i].named_parameters()}
    head.load_own_state({**head.own_state(), **copies})
    tokens = texts(2, 9)
    unrolled = head.unroll(tokens, states(head, tokens))
    assert unrolled.position[..., 0].tolist() == [list(range(9))] * 2 and unrolled.weight is None
    torch.testing.assert_close(unrolled.logits[:, :, 0], target.causal(tokens).logits)


@pytest.mark.parametrize("recycle", [False, True])
def test_packed_sequences_match_separate_ones(recycle):
    head = perturbed(make(recycle=recycle, num_blocks=1))
    long, short = texts(1, 7), texts(1, 4, seed=9)
    alone = [head.unroll(text, states(head, text)).logits for text in (long, short)]
    parts = [states(head, text) for text in (long, short)]
    hidden = {tap: torch.cat([part[tap] for part in parts], dim=1) for tap in head.taps}
    segment = torch.tensor([[0] * 7 + [1] * 4])
    together = head.unroll(torch.cat((long, short), dim=1), hidden, segment=segment).logits
    torch.testing.assert_close(together, torch.cat(alone, dim=1))


def test_new_recycling_head_matches_one_without_recycling():
    tokens = texts(2, 9)
    with_it, without = make(recycle=True), make()
    for generator in (None, seeded(3)):
        found = with_it.unroll(tokens, states(with_it, tokens), generator=generator).logits
        torch.testing.assert_close(found, without.unroll(tokens, states(without, tokens)).logits)


def crops(head, tokens, seed, segment=None):
    """Weights of a cropped unrolling, and each row's crop: the first token with full weight."""
    weight = head.unroll(tokens, states(head, tokens), generator=seeded(seed), segment=segment).weight[..., 0]
    return weight, (weight == 1).int().argmax(-1).tolist()


def test_crop_has_full_weight_up_to_max_age_and_verified_tokens_little():
    head = make(recycle=True, max_age=2, recycle_weight=0.25)
    found = set()
    for seed in range(12):
        weight, begins = crops(head, texts(3, 6), seed)
        for row, crop in zip(weight.tolist(), begins, strict=True):
            assert row == [0.25 if t < crop else float(t <= crop + 2) for t in range(6)]
            found.add(crop)
    assert found == set(range(6)), "sampled for each row, from all of its tokens"


def test_crop_has_no_weight_in_the_next_sequence():
    head = make(recycle=True)
    segment = torch.tensor([[0, 0, 0, 1, 1, 1]])
    for seed in range(12):
        weight, (crop,) = crops(head, texts(1, 6), seed, segment)
        assert weight[0].tolist() == pytest.approx(
            [0.1 if t < crop else float(segment[0, t] == segment[0, crop]) for t in range(6)]
        )


def test_drafts_do_not_depend_on_target_states_of_drafted_tokens():
    """Last-layer states from the crop on change nothing; those before it do."""
    head, tokens = perturbed(make(recycle=True)), texts(1, 8)
    hidden = states(head, tokens)
    seed = next(seed for seed in range(99) if crops(head, tokens, seed)[1] == [4])

    def logits(changed):
        last = hidden[LAYERS].clone()
        last[:, changed] += 1.0
        return head.unroll(tokens, {**hidden, LAYERS: last}, generator=seeded(seed)).logits

    plain = head.unroll(tokens, hidden, generator=seeded(seed)).logits
    assert torch.equal(logits(slice(4, None)), plain)
    moved = (logits(slice(3, 4)) != plain).flatten(2).any(-1)[0].tolist()
    assert moved == [t >= 4 for t in range(8)]


@pytest.mark.parametrize("recycle", [False, True])
@pytest.mark.parametrize("detached", [False, True])
def test_detached_head_does_not_change_the_targets_gradients(recycle, detached):
    """The last layer gets no gradient through recycled states either way."""
    target = models.native(models.llama(6)).requires_grad_(True)
    head = perturbed(make(target, recycle=recycle, own_norm=True))
    tokens = texts(2, 8)
    trunk = [p for name, p in target.named_parameters() if name.startswith("blocks.0.")]

    def gradients(*, both):
        output = target.causal(tokens, taps=head.taps)
        hidden = {tap: state.detach() if detached else state for tap, state in output.hidden.items()}
        loss = nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        if both:
            own = head.unroll(tokens, hidden, generator=seeded(1)).logits[:, :-1, 0]
            loss = loss + nn.functional.cross_entropy(own.flatten(0, 1), tokens[:, 1:].flatten())
        return torch.autograd.grad(loss, trunk)

    same = [torch.equal(one, two) for one, two in zip(gradients(both=False), gradients(both=True), strict=True)]
    assert all(same) if detached else not any(same)


def test_recycled_states_get_no_gradient_and_their_weights_do():
    head, tokens = make(recycle=True), texts(2, 8)
    hidden = {tap: state.clone().requires_grad_() for tap, state in states(head, tokens).items()}
    head.unroll(tokens, hidden, generator=seeded(1)).logits.square().sum().backward()
    assert hidden[LAYERS].grad is None and hidden[1].grad is not None
    assert all(part.grad is not None and part.grad.any() for part in (head.recycle.weight, head.recycle.ages))
