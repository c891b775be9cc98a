"""The kernel's forward of decoders that read an encoder's states, and packed encoders, against the eager ones."""

from copy import deepcopy
from functools import cache

import pytest
import torch

from paceline.core.tree import Tree
from paceline.models.backend import fastest, pack_weights
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import PackedLayer, pack_linears
from paceline.models.native import encoder as native_encoder
from paceline.models.native import encoder_decoder as native_encoder_decoder
from paceline.models.native.attention import SOURCE_KEYS, SOURCE_LENGTH, SOURCE_VALUES
from paceline.models.sublayers import SkippedSublayers
from tests.kernels.cpu.test_invariance import chain, one_by_one
from tests.kernels.cpu.test_kernel import ROWS, TOLERANCE, calls
from tests.models.encoder_decoders import KINDS, STATES, context, pair
from tests.models.layouts import path_to, random_tree, texts

DTYPES = (torch.bfloat16, torch.float32, torch.float64)
LENGTHS = (STATES, 1, 7)


@cache
def native(kind, dtype, seed=1):
    lm = deepcopy(pair(kind, seed)[1]).to(dtype).requires_grad_(False)
    for parameter in lm.parameters():
        parameter.data = parameter.data.contiguous()
    return lm


class Reading:
    """``model`` whose caches begin with made-up sources, of other lengths in each row and NaN after their ends."""

    def __init__(self, model):
        self.model, self.num_layers = model, model.num_layers

    def new_cache(self, rows, capacity):
        storage = self.model.new_cache(rows, capacity)
        generator = torch.Generator().manual_seed(7)
        for name in (SOURCE_KEYS, SOURCE_VALUES):
            shape = storage.row_state[name].shape[1:]
            for row in range(rows):
                drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
                storage.row_state[name][row] = drawn
                storage.row_state[name][row, :, LENGTHS[row % len(LENGTHS)] :] = 0.0
        storage.row_state[SOURCE_LENGTH].copy_(torch.tensor([LENGTHS[row % len(LENGTHS)] for row in range(rows)]))
        return storage

    def __call__(self, *arguments, **options):
        return self.model(*arguments, **options)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_matches_eager(kind, dtype):
    lm = native(kind, dtype)
    model = fastest(lm)
    assert isinstance(model, CpuDecoder)
    for own, eager in zip(calls(Reading(model)), calls(Reading(lm)), strict=True):
        assert float((own - eager).abs().max()) <= TOLERANCE[dtype] * max(1.0, float(eager.abs().max()))


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_error_is_at_most_that_of_eager(kind, dtype):
    exact, rounded = native(kind, torch.float64), native(kind, dtype)
    ideal = calls(Reading(exact))
    errors = [
        torch.stack([(own - wanted).norm() for own, wanted in zip(calls(Reading(model)), ideal, strict=True)]).norm()
        for model in (CpuDecoder(rounded), rounded)
    ]
    assert float(errors[0]) <= 1.25 * float(errors[1])


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_layers_without_some_of_their_parts(kind):
    lm = native(kind, torch.float64)
    skipped = SkippedSublayers(attention=frozenset({1}), mlp=frozenset({0}))
    for own, eager in zip(calls(Reading(CpuDecoder(lm, skipped))), calls(Reading(lm.without(skipped))), strict=True):
        assert torch.allclose(own, eager, rtol=0, atol=1e-10)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["t5", "bart", "whisper"])
def test_view_selects_rows_and_layers(kind):
    lm = native(kind, torch.float64)
    found = []
    for model in (lm, CpuDecoder(lm)):
        storage = Reading(model).new_cache(4, 32)
        for rows, layers in (([2, 0], None), ([1], [2, 0]), ([3], [0])):
            view = storage.view(torch.tensor(rows), layers)
            found.append(model(chain(texts(len(rows), 5)), view).logits)
            view.commit(torch.full((len(rows),), 5))
            found.append(model(random_tree(len(rows), 4, 1, all_valid=True), view).logits)
    half = len(found) // 2
    for own, eager in zip(found[half:], found[:half], strict=True):
        assert torch.allclose(own, eager, rtol=0, atol=1e-10)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["t5", "bart", "whisper"])
def test_a_token_has_the_same_logits_whatever_is_beside_it(kind, dtype):
    model = Reading(CpuDecoder(native(kind, dtype)))
    tokens = texts(1, 33).expand(ROWS, -1).contiguous()
    alone = one_by_one(model, tokens)
    together = model(chain(tokens), model.new_cache(ROWS, 64).view()).logits
    assert torch.equal(together, alone)
    assert not torch.allclose(alone[0], alone[1], atol=1e-3), "the sources make no difference"
    cache = model.new_cache(1, 64).view()
    model(chain(tokens[:1, :18]), cache)
    cache.commit(torch.tensor([18]))
    tree = random_tree(1, 12, 2, all_valid=True)
    logits = model(tree, cache).logits[0]
    for node in range(tree.num_nodes):
        path = path_to(tree, 0, node)
        line = Tree.make_chain(tree.tokens[:, path], torch.ones(1, len(path), dtype=torch.bool))
        assert torch.equal(model(line, cache).logits[0, -1], logits[node])


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_packed_encoders_give_the_states_of_eager_ones(kind):
    lm = native(kind, torch.bfloat16)
    packed = deepcopy(lm)
    pack_linears(packed)
    assert any(isinstance(part, PackedLayer) for part in packed.encoder.modules())
    length = torch.tensor(LENGTHS)
    if kind == "whisper":
        inputs = torch.randn(3, lm.config.encoder.num_features, 2 * STATES, generator=torch.Generator().manual_seed(1))
        length = torch.full_like(length, STATES)
    else:
        inputs = texts(3, STATES)
    exact = native(kind, torch.float64).encode_inputs(inputs, length)
    error, eager = ((one.encode_inputs(inputs, length).double() - exact) for one in (packed, lm))
    own = torch.arange(STATES) < length[:, None]
    assert float(error[own].norm()) <= 1.25 * float(eager[own].norm())
    for one, other in zip(
        packed.source_keys_values(exact.bfloat16()), lm.source_keys_values(exact.bfloat16()), strict=True
    ):
        for mine, wanted in zip(one, other, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0.02, atol=0.02)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["whisper", "t5"])
def test_where_there_are_matrix_tiles_torch_encodes_each_sound_alone(kind, monkeypatch):
    for module in (native_encoder, native_encoder_decoder):
        monkeypatch.setattr(module, "has_matrix_tiles", lambda: True)
    lm = deepcopy(native(kind, torch.bfloat16))
    pack_weights(lm)
    by_torch = not any(isinstance(part, PackedLayer) for part in lm.encoder.modules())
    assert by_torch is lm.encodes_by_torch is (kind == "whisper")
    assert isinstance(lm.blocks[0].ffn.up, PackedLayer)
    read, encode = [], lm.encode_inputs
    monkeypatch.setattr(lm, "encode_inputs", lambda inputs, length: read.append(len(inputs)) or encode(inputs, length))
    contexts = [context(kind, 700 + index) for index in range(3)]
    together = [states.clone() for states in lm.encode(contexts)]
    assert read == ([1, 1, 1] if by_torch else [3])
    exact = native(kind, torch.float64)
    for given, states in zip(contexts, together, strict=True):
        torch.testing.assert_close(states.double(), exact.encode([given])[0], rtol=0.1, atol=0.2)
    narrow = deepcopy(native(kind, torch.float32))
    assert not narrow.encodes_by_torch
