"""Small instances of the drafter ``hydra``, and its prefix layer; test_feature_drafters.py says what it must do."""

import copy

import pytest
import torch

from paceline.core.admission import Prefix
from paceline.drafters.hydra import HydraDrafter
from paceline.models.backend import fastest
from paceline.models.cpu.decoder import CpuDecoder
from tests import tiny as models
from tests.drafters.feature_heads import fitted, new_head
from tests.drafters.last_states import whole
from tests.harness import decoder_for, request
from tests.models.layouts import pair


def tiny(target):
    return HydraDrafter(head=fitted("hydra", target, noise=0.05))  # accepted lengths of every kind


def guessable_target():
    return models.looping_target()


def test_a_new_prefix_layer_adds_nothing():
    _, target = models.target()
    head = new_head("hydra", target, prefix=True)
    hidden = target.causal(torch.tensor([[7, 3, 5]]), taps=head.taps).hidden[head.taps[0]]
    read = head.read_states(hidden)
    torch.testing.assert_close(head.in_context(hidden, None), head.prefix.norm(read))
    changed = new_head("hydra", target, prefix=True, spread=0.1)
    assert not torch.allclose(changed.in_context(hidden, None)[:, 2], changed.in_context(hidden[:, 2:], None)[:, 0])


def test_packed_sequences_do_not_see_each_other():
    _, target = models.target()
    head = new_head("hydra", target, prefix=True, spread=0.1)
    hidden = torch.randn(1, 5, target.config.hidden_size, dtype=torch.float64)
    segment = torch.tensor([[0, 0, 1, 1, 1]])
    joint = head.in_context(hidden, segment)
    apart = torch.cat([head.in_context(part, None) for part in (hidden[:, :2], hidden[:, 2:])], dim=1)
    torch.testing.assert_close(joint, apart)


def test_a_copied_prefix_is_read_as_by_itself():
    """Rows continue another's sequence, at its end and before it, while that goes on."""
    _, target = models.looping_target()
    drafter = HydraDrafter(head=new_head("hydra", target, prefix=True, spread=0.1))
    decoder = decoder_for(drafter, "coupled", target=target, k=3, rows=3, max_length=64)
    prompt = [7, 3, 5, 7, 1, 2, 9]
    decoder.admit([request(prompt, max_tokens=20)], [0])
    for _ in range(2):
        decoder.step()
    known = decoder.batch.tokens[0, : decoder.batch.length[0]].tolist()
    sequences = [[*known, 4], [*known[:5], 11, 12, 13, 14]]
    prefixes = [Prefix(row=0, length=len(known) - 1), Prefix(row=0, length=5)]
    decoder.admit([request(one, max_tokens=9) for one in sequences], [1, 2], prefixes)
    for _ in range(2):
        for row in range(3):
            sequence = decoder.batch.tokens[row, : decoder.batch.length[row]].tolist()
            kept, _ = whole(target, drafter.head, sequence)
            torch.testing.assert_close(drafter.states.states[row, 0], kept[len(sequence) - 2])
        decoder.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["llama-2", "gpt2", "olmo2"])
def test_the_kernel_makes_what_torch_makes(layout, dtype):
    target = copy.deepcopy(pair(layout)[1]).to(dtype)
    head = new_head("hydra", target, prefix=True, spread=0.1).requires_grad_(False)
    quick = copy.deepcopy(head)
    quick.use_kernels()
    assert isinstance(quick.prefix_lm, CpuDecoder) and quick.prefix_lm is not head.prefix_lm
    kept = []
    for one in (quick, head):
        drafter = HydraDrafter(head=one)
        decoder = decoder_for(drafter, "coupled", target=fastest(target), k=3, rows=2)
        decoder.admit([request([7, 3, 5, 2]), request([1, 4])], [0, 1])
        kept.append([drafter.states.states.clone()])
        decoder.step()
        kept[-1].append(drafter.states.states.clone())
    tolerance = 1e-4 if dtype is torch.float32 else 5e-2
    for one, other in zip(*kept, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_every_tensor_of_the_prefix_layer_is_trained():
    target = copy.deepcopy(models.target()[1]).requires_grad_(False)
    head = new_head("hydra", target, prefix=True, spread=0.1)
    for tensor in head.own_state().values():
        tensor.requires_grad_(True)
    tokens = torch.tensor([[7, 3, 5, 2, 1, 4]])
    head.unroll(tokens, target.causal(tokens, taps=head.taps).hidden).logits.square().mean().backward()
    for name, tensor in head.own_state().items():
        assert tensor.grad is not None and bool(tensor.grad.any()), name
    assert all(one.grad is None for one in target.parameters())
