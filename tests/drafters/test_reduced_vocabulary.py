"""Draft models that read all tokens and draft some: their logits, under every verifier, from files, and refusals."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from paceline.api import generate, load, total
from paceline.api.build import build_drafter
from paceline.core.tree import Draw
from paceline.draft_heads.vocab_map import ReducedVocab
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.models.backend import fastest, pack_weights
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.directory import ModelError
from paceline.models.draft_vocab import FILE, IDS, read_draft_vocab, with_draft_vocab, write_draft_vocab
from tests import tiny as models
from tests.api.checkpoints import pair, without_tokenizer
from tests.conformance import test_conformance, test_guidance, test_options
from tests.drafters.test_cross_vocabulary import every_verifier, in_place_of_the_model
from tests.harness import decoder_for, finish, request, run
from tests.models.encoder_decoders import KINDS, START, context
from tests.models.encoder_decoders import pair as encoder_decoder

DRAFTED = torch.tensor([token for token in range(models.VOCAB) if token % 5 != 2])


def reduced(target, **options):
    """The target with noise, which drafts four tokens of five."""
    lm = models.noisy(target, 0.05)
    vocab = ReducedVocab(DRAFTED, target_size=models.VOCAB, last_read=models.VOCAB - 1)
    return ModelDrafter(lm=fastest(with_draft_vocab(lm, DRAFTED)), vocab=vocab, **options)


@pytest.fixture
def in_place(monkeypatch):
    in_place_of_the_model(monkeypatch, reduced)


@every_verifier
def test_greedy_output_in_ragged_batches(verifier, in_place):
    test_conformance.test_greedy_output_equals_the_reference_and_every_event_occurs("model", verifier)


@every_verifier
def test_penalties_and_other_processors_are_honoured(verifier, in_place):
    test_options.test_greedy_outputs_equal_the_reference("model", verifier)


@every_verifier
def test_the_kernels_outputs_equal_the_plain_ones(verifier, in_place):
    test_options.test_the_kernels_outputs_equal_the_plain_ones("model", verifier, 0.9)


@pytest.mark.parametrize("kernel", [False, True])
def test_guided_rows_beside_a_free_one(kernel, in_place):
    test_guidance.test_guided_rows_beside_a_free_one_are_those_of_plain_forwards("model", 0.9, kernel)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_its_logits_are_those_of_the_whole_head(tied, dtype):
    lm = models.native(models.llama(seed=3, tie_word_embeddings=tied)).to(dtype)
    tokens = torch.randint(models.VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))
    wanted = lm.causal(tokens).logits[..., DRAFTED]
    torch.testing.assert_close(with_draft_vocab(lm, DRAFTED).causal(tokens).logits, wanted)
    assert lm.causal(tokens).logits.shape[-1] == models.VOCAB, "the model that was given is as it was"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_kernel_drafts_what_the_eager_model_drafts(tied, packed):
    """Chains of one call, of which the kernel maps the ids, and chains of a call for each token."""
    target = models.native(models.llama(seed=12, tie_word_embeddings=tied))
    lm = models.noisy(target, 0.02)
    if packed:
        pack_weights(lm)
    vocab = ReducedVocab(DRAFTED, target_size=models.VOCAB, last_read=models.VOCAB - 1)
    found = {}
    for name, own in (("eager", with_draft_vocab(lm, DRAFTED)), ("kernel", fastest(with_draft_vocab(lm, DRAFTED)))):
        assert isinstance(own, CpuDecoder) == (name == "kernel")
        drafter = ModelDrafter(lm=own, vocab=vocab, draws=frozenset({Draw.FIXED}))
        requests = [request([1, 4, 6, 3][: 2 + row], max_tokens=20) for row in range(3)]
        found[name] = run(drafter, "match", requests, target=target)
    assert found["kernel"].texts == found["eager"].texts
    assert found["kernel"].summary.accepted == found["eager"].summary.accepted
    assert found["kernel"].summary.mean_acceptance_length > 1.5
    tokens = {token for row in found["kernel"].texts for token in row}
    assert tokens - set(DRAFTED.tolist()), "the target gives others too"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_decoder_reads_sources_of_all_its_tokens(kind):
    target = encoder_decoder(kind)[1]
    ids = torch.arange(0, target.vocab_size, 2)
    lm = with_draft_vocab(target, ids)
    given = context(kind, 1)
    assert lm.context_inputs == target.context_inputs
    decoder = decoder_for(
        ModelDrafter(lm=lm, vocab=ReducedVocab(ids, target_size=target.vocab_size, last_read=target.vocab_size - 1)),
        "match",
        target=target,
    )
    asked = replace(request([START], max_tokens=12), context=given)
    decoder.admit([asked], [0])
    drafted = finish(decoder, rows=[0], prompts=[[START]])
    plain = decoder_for(NoDrafter(), "match", target=target)
    plain.admit([asked], [0])
    assert drafted.texts == finish(plain, rows=[0], prompts=[[START]]).texts
    even = [token for token in drafted.texts[0] if token % 2 == 0]
    assert drafted.summary.accepted[0] >= min(len(even), 1), "a draft of equal weights is right where it has the token"


def test_a_file_beside_the_weights_of_a_draft_is_honoured(tmp_path):
    target, draft = load(pair().target), load(pair().draft)
    plain = generate(target, "def add(", max_tokens=24, temperature=0.0, ignore_eos=True)
    folder = tmp_path / "draft"
    shutil.copytree(pair().draft, folder)
    common = sorted({*plain[0].token_ids[:16], *range(0, 320, 2)})
    write_draft_vocab(folder, torch.tensor(common))
    own = load(folder)
    assert own.draft_ids is not None and own.draft_ids.tolist() == common
    assert own.lm.vocab_size == draft.lm.vocab_size, "as a target it has all tokens"
    options = {"num_draft_tokens": 4, "max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
    some, all_tokens = (generate(target, "def add(", drafter=given, **options) for given in (own, draft))
    assert some[0].token_ids == plain[0].token_ids
    assert 1.5 < total(some).mean_acceptance_length <= total(all_tokens).mean_acceptance_length
    drafter = build_drafter(own, target=target)
    assert isinstance(drafter, ModelDrafter) and drafter.lm.vocab_size == len(common)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([3, 1]), "ascending ids, at least one, of 0 to 319"),
        (torch.tensor([], dtype=torch.int64), "at least one"),
        (torch.tensor([5, 320]), "of 0 to 319"),
    ],
)
def test_a_file_with_other_ids_is_refused_with_its_path(ids, message, tmp_path):
    write_draft_vocab(tmp_path, ids)
    with pytest.raises(ModelError, match=f"{FILE}: .*{message}"):
        read_draft_vocab(tmp_path, 320)


def test_a_file_without_ids_is_refused(tmp_path):
    assert read_draft_vocab(tmp_path, 320) is None
    for other in ({"other": [1]}, {IDS: 3}, {IDS: [1.0, 2.0]}, {IDS: [False, True]}, [1, 2]):
        (tmp_path / FILE).write_text(json.dumps(other))
        with pytest.raises(ModelError, match=f"{IDS}.* with a list of ids is wanted"):
            read_draft_vocab(tmp_path, 320)
    (tmp_path / FILE).write_bytes(b"\xffcut")
    with pytest.raises(ModelError, match="or remove it"):
        read_draft_vocab(tmp_path, 320)


def test_no_program_takes_the_file_for_weights(tmp_path):
    """vLLM and others load all files of weights in a directory."""
    write_draft_vocab(tmp_path, torch.arange(3))
    assert not any(path.suffix in (".safetensors", ".bin", ".pt") for path in tmp_path.iterdir())


def test_models_that_cannot_are_refused(tmp_path):
    ids = torch.arange(3)
    without_tokenizer(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ValueError, match="without quantization"):
        with_draft_vocab(load(tmp_path, quantization="int8", dtype="float32").lm, ids)
    with pytest.raises(ValueError, match="natively"):
        with_draft_vocab(load(pair().draft, backend="hf").lm, ids)
    with pytest.raises(ValueError, match="draft ids to 60: the target has 60 tokens"):
        ReducedVocab(DRAFTED, target_size=60, last_read=60)
