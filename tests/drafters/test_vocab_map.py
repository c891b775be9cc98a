"""Drafts with a vocabulary of their own: ids map back and forth, and the output stays the target's."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from paceline.core.tree import Draw
from paceline.draft_heads.vocab_map import MappedVocab, PaddedVocab
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.models.native.decoder import DecoderLM
from tests import tiny as models
from tests.drafters.test_tree_growers import PROMPTS
from tests.harness import decoder_for, expected, request, run

ORDER = torch.randperm(models.VOCAB, generator=torch.Generator().manual_seed(4)).tolist()
KNOWN = [token for token in ORDER if token % 7]  # a draft without every seventh token
SHAPES = {"chain": None, "tree": Topology.branching((2, 2)), "confident": Confident(num_drafted=6, depth=3, width=2)}


def draft(target_ids):
    """A draft model over the tokens ``target_ids``: the target with noise, its embedding and head reordered."""
    lm = models.noisy(models.target()[1], 0.05)
    other = models.native(models.llama(vocab_size=len(target_ids)))
    state = {name: part.clone() for name, part in lm.state_dict().items()}
    for name in ("embed.weight", "head.weight"):
        state[name] = state[name][torch.tensor(target_ids)]
    other.load_state_dict(state, assign=True)
    return other.requires_grad_(False).eval()


def mapped(target_ids, **options):
    vocab = MappedVocab(target_ids=target_ids, target_size=models.VOCAB)
    return ModelDrafter(lm=draft(target_ids), vocab=vocab, **options)


def requests(temperature, max_tokens=24):
    return [request(p, max_tokens=max_tokens, temperature=temperature, seed=i) for i, p in enumerate(PROMPTS)]


def test_logits_move_to_target_ids_and_tokens_to_draft_ids():
    vocab = MappedVocab(target_ids=[4, 0, -1, 2], target_size=6, unknown=2)
    logits = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    inf = float("inf")
    assert vocab.target_logits(logits).tolist() == [[[2.0, -inf, 4.0, -inf, 1.0, -inf]]]
    assert vocab.draft_ids(torch.tensor([[0, 1, 2, 3, 4, 5]])).tolist() == [[1, 2, 3, 2, 0, 2]]


@pytest.mark.parametrize(("draft_size", "target_size"), [(4, 6), (6, 4), (5, 5)])
def test_padded_vocabularies_have_the_same_ids(draft_size, target_size):
    vocab = PaddedVocab(draft_size=draft_size, target_size=target_size)
    logits, both = torch.randn(2, 1, draft_size), min(draft_size, target_size)
    found = vocab.target_logits(logits)
    assert found.shape[-1] == target_size and torch.equal(found[..., :both], logits[..., :both])
    assert (found[..., both:] == -torch.inf).all()
    assert vocab.draft_ids(torch.tensor([0, target_size - 1])).tolist() == [0, both - 1]


def test_offsets_and_masks_of_eagle_checkpoints_give_the_same_map():
    t2d = torch.tensor([True, False, True, True, False, True])
    ids = t2d.nonzero()[:, 0]
    d2t = ids - torch.arange(4)  # offsets, not ids
    tokens, logits = torch.arange(6), torch.randn(3, 4)
    maps = (MappedVocab.from_offsets(d2t, target_size=6), MappedVocab.from_mask(t2d))
    for vocab in maps:
        assert vocab.draft_ids(tokens)[t2d].tolist() == [0, 1, 2, 3]
        assert torch.equal(vocab.target_logits(logits)[:, ids], logits)
        assert vocab.target_logits(logits).softmax(-1).sum(-1).tolist() == pytest.approx([1, 1, 1])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_permuted_vocabulary_drafts_the_same_trees(shape):
    plain = run(ModelDrafter(lm=draft(range(models.VOCAB)), shape=SHAPES[shape]), "coupled", requests(0.8), k=3)
    permuted = run(mapped(ORDER, shape=SHAPES[shape]), "coupled", requests(0.8), k=3)
    assert permuted.texts == plain.texts and permuted.summary == plain.summary
    assert plain.summary.acceptance_rate > 0.1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_reduced_vocabulary_leaves_the_output_unchanged(shape, temperature):
    result = run(mapped(KNOWN, shape=SHAPES[shape]), "coupled", requests(temperature), k=3)
    assert result.texts == [expected(r) for r in requests(temperature)]
    assert result.summary.acceptance_rate > 0.05  # some outputs hold tokens that the draft lacks


@pytest.mark.parametrize("draw", [Draw.IID, Draw.NO_REPLACEMENT])
def test_draft_probs_cover_the_draft_vocabulary_alone(draw):
    drafter = mapped(KNOWN, shape=SHAPES["tree"], draws=frozenset({draw}))
    decoder = decoder_for(drafter, "recursive", k=2, rows=len(PROMPTS))
    decoder.admit(requests(1.0), range(len(PROMPTS)))
    tree = drafter.propose(decoder.batch, decoder.plan())
    unknown = torch.tensor(sorted(set(range(models.VOCAB)) - set(KNOWN)))
    assert (tree.probs[..., unknown] == 0).all() and not torch.isin(tree.tokens[:, 1:], unknown).any()
    torch.testing.assert_close(tree.probs.sum(-1), torch.ones_like(tree.probs[..., 0]))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_step_with_a_vocabulary_map_runs_on_fake_tensors(shape):
    config = models.target()[1].config
    with FakeTensorMode():
        target, lm = (DecoderLM(config).requires_grad_(False) for _ in range(2))
        vocab = MappedVocab(target_ids=ORDER, target_size=models.VOCAB)
        decoder = decoder_for(ModelDrafter(lm=lm, vocab=vocab, shape=SHAPES[shape]), "coupled", target=target, rows=4)
        decoder.admit(requests(0.7), range(4))
        for _ in range(3):
            decoder.step()
        with pytest.raises(DataDependentOutputException):
            decoder.results()


@pytest.mark.parametrize(
    ("target_ids", "message"),
    [
        ([0, 1, 1], "give each an id of its own"),
        ([-1, -1], "give each an id of its own"),
        ([0, 61], "the target has ids 0 to 60"),
        ([0, -2], "the target has ids 0 to 60"),
    ],
)
def test_invalid_maps_are_refused(target_ids, message):
    with pytest.raises(ValueError, match=message):
        MappedVocab(target_ids=target_ids, target_size=models.VOCAB)


def test_a_map_of_another_pair_is_refused():
    drafter = ModelDrafter(lm=models.draft(), vocab=MappedVocab(target_ids=KNOWN, target_size=models.VOCAB))
    with pytest.raises(ValueError, match="give the map of this pair"):
        decoder_for(drafter, "coupled")
    with pytest.raises(ValueError, match="unknown=2: the draft has ids 0 to 1"):
        MappedVocab(target_ids=[3, 4], target_size=models.VOCAB, unknown=2)
