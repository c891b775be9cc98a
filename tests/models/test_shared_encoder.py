"""Drafts with the target's encoder: copies of its decoder layers, and models whose encoder equals the target's."""

from dataclasses import replace

import pytest
import torch

from paceline.api import Loaded
from paceline.api.build import build_drafter
from paceline.models.copied_layers import copy_layers, resolve_layers, smaller_config, with_encoder
from paceline.models.from_transformers import from_transformers
from paceline.models.loading import configure
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.models.shared_encoder import reading_from, same_encoder
from tests.harness import decoder_for, finish, request
from tests.models.encoder_decoders import KINDS, START, context, pair, transformers_model
from tests.models.test_encoder_decoders import counted, naive

SIZES = (7, 1, 11, 4)


def decoder_weights(lm):
    return {name: tensor for name, tensor in lm.state_dict().items() if not name.startswith("encoder.")}


def whole_draft(kind, layers=(0, -1)):
    """The target, and a model of its own with equal encoder weights in memory of its own, float64."""
    target = pair(kind)[1]
    draft = with_encoder(copy_layers(target, layers).double(), target)
    held = {name: tensor.clone() for name, tensor in draft.state_dict().items()}
    with torch.no_grad():
        for name, tensor in held.items():
            if not name.startswith(("encoder.", "embed.")):
                tensor.add_(0.02 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))))
    draft.load_state_dict(held, assign=True)
    return target, draft


def loaded(lm):
    return Loaded(lm=lm, tokenizer=None, eos=(), name="tiny", dtype=lm.dtype, config={}, start=(START,))


@pytest.mark.parametrize("kind", KINDS)
def test_copied_layers_have_the_teachers_weights(kind):
    target = pair(kind)[1]
    draft = copy_layers(target, (0, -1))
    assert draft.num_layers == 2 and draft.encoder is None and draft.reads_from is target
    assert {tensor.dtype for tensor in draft.state_dict().values()} == {torch.float32}
    own, theirs = decoder_weights(draft), decoder_weights(target)
    # Layer 1 of the draft is layer 2 of the target, its last.
    wanted = {
        name.replace("blocks.2.", "blocks.1."): tensor
        for name, tensor in theirs.items()
        if not name.startswith("blocks.1.")
    }
    assert own.keys() == wanted.keys()
    for name, tensor in own.items():
        assert torch.equal(tensor, wanted[name].float()), name
        assert tensor.data_ptr() != wanted[name].data_ptr()


def test_the_norm_of_the_embeddings_stays_that_of_the_first_layer():
    target = pair("bart")[1]
    draft = copy_layers(target, (1, 2))
    norm = draft.blocks[0].embedding_norm
    assert norm is not None and torch.equal(norm.weight, target.blocks[0].embedding_norm.weight.float())
    assert torch.equal(draft.blocks[0].ffn.up.weight, target.blocks[1].ffn.up.weight.float())


def test_layers_are_counted_from_both_ends():
    assert resolve_layers((0, -1), 12) == (0, 11) and resolve_layers((-3, 4), 6) == (3, 4)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((), "no layers: give at least one"),
        (
            (0, 3),
            r"\[0, 3\]: there is no layer 3, .*: give numbers from 0 to 2, or from -1, the last, to -3",
        ),
        ((-4,), "there is no layer -4"),
        ((2, 0), r"\[2, 0\]: layer 0 comes after layer 2: give each once, in ascending order"),
        ((0, 2, -1), "layer 2 is there twice"),
    ],
)
def test_layers_that_cannot_be_copied(layers, said):
    with pytest.raises(ValueError, match=said):
        resolve_layers(layers, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_of_all_layers_is_the_target(kind):
    target = pair(kind)[1]
    whole = with_encoder(copy_layers(target, range(3)).double(), target)
    raw = smaller_config(pair(kind)[0].config.to_dict(), 3)
    assert replace(configure(raw, "config"), tied_head=target.config.tied_head) == whole.config
    assert same_encoder(whole, target)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.each_value
def test_an_equal_encoder_is_run_once_and_drafts_change_nothing(kind, size, monkeypatch):
    target, draft = whole_draft(kind)
    drafter = build_drafter(loaded(draft), target=replace(loaded(target), enforce_eager=True))
    read, own = counted(target, monkeypatch), counted(draft, monkeypatch)
    requests = [replace(request([START, 5, 40]), context=context(kind, 400 + row, SIZES[row])) for row in range(size)]
    decoder = decoder_for(drafter, "coupled", target=target, rows=size)
    decoder.admit(requests, range(size))
    found = finish(decoder, rows=range(size), prompts=[one.tokens for one in requests])
    assert found.texts == [naive(kind, one) for one in requests]
    assert sum(read) == size and own == []
    assert sum(decoder.stats.summary(range(size)).accepted) > 0
    assert draft.encoder is not None and draft.reads_from is draft, "the model that was given is as it was"


@pytest.mark.parametrize("kind", ["t5", "bart", "whisper"])
def test_encoders_that_differ_are_run_apart(kind):
    target, draft = whole_draft(kind)
    assert isinstance(reading_from(draft, target), EncoderDecoderLM) and reading_from(draft, target) is not draft
    with torch.no_grad():
        last = list(draft.encoder.parameters())[-1]
        held = last.clone()
        last.view(-1)[-1] += 1e-9
        assert reading_from(draft, target) is draft
        last.copy_(held)
        assert same_encoder(draft, target)
        draft.embed.weight[7, 3] += 1e-9  # which T5's and BART's encoders read with too
    assert same_encoder(draft, target) == (kind == "whisper")
    assert not same_encoder(draft.float(), target), "of another precision"
    shape = {"num_layers": 1} if kind == "t5" else {"encoder_layers": 1}
    smaller = from_transformers(transformers_model(kind, **shape))
    assert reading_from(smaller, target) is smaller


def test_a_draft_with_its_own_encoder_still_drafts_losslessly(monkeypatch):
    target, draft = pair("bart")[1], pair("bart", 2)[1]
    drafter = build_drafter(loaded(draft), target=replace(loaded(target), enforce_eager=True))
    read, own = counted(target, monkeypatch), counted(draft, monkeypatch)
    one = replace(request([START]), context=context("bart", 511))
    decoder = decoder_for(drafter, "coupled", target=target, rows=1)
    decoder.admit([one], [0])
    assert finish(decoder, rows=[0], prompts=[[START]]).texts == [naive("bart", one)]
    assert read == own == [1]


def test_states_are_read_in_the_drafts_own_precision():
    target = pair("t5")[1]
    draft = copy_layers(target, (0, -1))
    (states,) = draft.encode([context("t5", 77)])
    assert states.dtype == torch.float32
    (theirs,) = target.encode([context("t5", 77)])
    assert torch.equal(states, theirs.float()) and theirs.dtype == torch.float64
