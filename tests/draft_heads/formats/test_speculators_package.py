"""Heads that the package speculators itself saved are read here, and ours are read by its own classes, bit for bit."""

import warnings
from importlib import import_module

import pytest
import torch

from paceline.draft_heads.files import load_head
from paceline.draft_heads.formats.base import HeadFiles
from paceline.draft_heads.formats.detection import detect
from paceline.draft_heads.formats.writing import convert, write_files
from paceline.models.loading import load
from tests import tiny
from tests.draft_heads.formats.speculators_package import load_module

SIZES = dict(tiny.LLAMA, head_dim=8, max_position_embeddings=256)
BLOCK = dict(block_size=4, mask_token_id=5, aux_hidden_state_layer_ids=[1, 2, 3])
EAGLE = dict(eagle_aux_hidden_state_layer_ids=[0, 2, 3])
SELECTOR = dict(conv_kernel_size=3, conv_group_size=8, selector_rank=5, selector_top_k=7)
SPARK = dict(**BLOCK, markov_rank=4)
# Module, classes of the package, layers, and the fields of the head.
HEADS = {
    "dflash": ("dflash", "DFlash", 2, dict(**BLOCK, draft_vocab_size=tiny.VOCAB)),
    "dflash, draft vocabulary": ("dflash", "DFlash", 2, dict(**BLOCK, draft_vocab_size=24)),
    "dspark": ("dspark", "DSpark", 2, dict(**SPARK, draft_vocab_size=tiny.VOCAB)),
    "dspark, draft vocabulary": ("dspark", "DSpark", 2, dict(**SPARK, draft_vocab_size=24)),
    "dspark, gated": ("dspark", "DSpark", 2, dict(**SPARK, markov_head_type="gated", draft_vocab_size=24)),
    "dspark, recurrent": ("dspark", "DSpark", 2, dict(**SPARK, markov_head_type="rnn", draft_vocab_size=24)),
    "dflash2": ("dflash2", "DFlash2", 2, dict(**BLOCK, draft_vocab_size=tiny.VOCAB, **SELECTOR)),
    "xpress": ("xpress", "XPress", 2, dict(**BLOCK, draft_vocab_size=24, xpress_rank=6, xpress_mlp_ratio=3)),
    "xpress, anchor first": (
        *("xpress", "XPress", 2),
        dict(**BLOCK, draft_vocab_size=tiny.VOCAB, xpress_rank=6, sample_from_anchor=True),
    ),
    "eagle3": ("eagle3", "Eagle3", 1, dict(**EAGLE, draft_vocab_size=tiny.VOCAB, norm_before_fc=True)),
    "eagle3, draft vocabulary": ("eagle3", "Eagle3", 1, dict(**EAGLE, draft_vocab_size=24, norm_output=True)),
    "peagle": ("peagle", "PEagle", 2, dict(**EAGLE, draft_vocab_size=24, mask_token_id=5)),
    "mtp": ("mtp", "MTP", tiny.LLAMA["num_hidden_layers"], {}),
    "eagle3, norms": ("eagle3", "Eagle3", 1, dict(**EAGLE, draft_vocab_size=24, fc_norm=True)),
}


@pytest.fixture
def saved(name, tmp_path):
    """The package's class, its model with random weights, and the directories where it and its target are saved."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    module, prefix, layers, fields = HEADS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        package = load_module(module)
        found = import_module("speculators.config")
        greedy = import_module("speculators.proposals.greedy").GreedyTokenProposalConfig
        torch.manual_seed(3)
        Qwen3ForCausalLM(Qwen3Config(**SIZES)).save_pretrained(tmp_path / "target")
        target = found.VerifierConfig(name_or_path=str(tmp_path / "target"), architectures=["Qwen3ForCausalLM"])
        config = getattr(package, f"{prefix}SpeculatorConfig")(
            transformer_layer_config=Qwen3Config(**{**SIZES, "num_hidden_layers": layers}),
            speculators_config=found.SpeculatorsConfig(
                algorithm=module,
                proposal_methods=[greedy(speculative_tokens=3)],
                default_proposal_method="greedy",
                verifier=target,
            ),
            **fields,
        )
        kind = getattr(package, f"{prefix}DraftModel")
        model = kind(config)
        for part in model.parameters():
            part.data = torch.randn_like(part) * 0.2
        size = fields.get("draft_vocab_size", tiny.VOCAB)
        if size < tiny.VOCAB:
            ids = torch.randperm(tiny.VOCAB)[:size].sort().values
            model.d2t.copy_(ids - torch.arange(len(ids)))
            model.t2d.zero_()[ids] = True
        model.save_pretrained(tmp_path / "theirs")
        yield kind, model, tmp_path


@pytest.mark.parametrize("name", HEADS)
def test_head_of_the_package_is_read_and_written_as_it_was(name, saved):
    kind, model, folder = saved
    theirs = HeadFiles(folder / "theirs")
    target = load(folder / "target")
    head = load_head(folder / "theirs", target)
    if head.draft_ids is not None:
        assert torch.equal(head.draft_ids, model.d2t + torch.arange(len(model.d2t)))
    target_name = str(folder / "target")
    write_files(
        convert(head, detect(theirs), target=target, target_name=target_name, num_draft_tokens=3), folder / "ours"
    )
    ours = HeadFiles(folder / "ours")
    kept = {one for one in theirs.headers if not one.startswith(("embed_tokens", "verifier_"))}
    assert kept <= set(ours.headers) and set(ours.headers) <= set(theirs.headers)
    assert all(torch.equal(ours.tensor(one), theirs.tensor(one)) for one in kept)
    again = kind.from_pretrained(folder / "ours").state_dict()
    for part, tensor in model.state_dict().items():
        if not part.startswith(("verifier_", "embed_tokens", "lm_head")) or part in kept:
            assert torch.equal(again[part], tensor), part


@pytest.mark.parametrize("name", [name for name in HEADS if HEADS[name][0] == "eagle3"])
def test_logits_are_those_of_the_packages_forward_at_every_step(name, saved):
    _, model, folder = saved
    target = load(folder / "target", dtype=torch.float64)
    head = load_head(folder / "theirs", target)
    model, steps = model.double(), []
    model.embed_tokens.weight.data = head.decoder.embed.weight.detach().clone()
    model.lm_head.register_forward_hook(lambda _, __, logits: steps.append(logits[0].detach()))
    tokens = torch.randint(0, tiny.VOCAB, (1, 129))  # their mask takes multiples of 128 pairs
    with torch.no_grad():
        hidden = target.causal(tokens, taps=head.taps).hidden
        fused = torch.cat([hidden[tap] for tap in EAGLE["eagle_aux_hidden_state_layer_ids"]], dim=-1)
        one = torch.zeros(1, 128, dtype=torch.int64)
        model(hidden_states=fused[:, :-1], input_ids=tokens[:, 1:], document_ids=one, ttt_steps=3)
        ours = head.unroll(tokens, hidden)
    roots = ours.position[0, :, 0]
    for step, theirs in enumerate(steps):
        inside = roots + step < tokens.shape[1]
        assert torch.allclose(ours.logits[0, inside, step], theirs[roots[inside] - 1], atol=1e-6), step
    assert len(steps) == 3


BLOCKS = [name for name in HEADS if HEADS[name][0] in ("dflash", "dspark", "dflash2", "xpress")]


@pytest.mark.parametrize("name", BLOCKS)
def test_logits_of_blocks_are_those_of_the_packages_forward(name, saved):
    """All of a vocabulary, also where only candidates are drafted."""
    _, model, folder = saved
    target = load(folder / "target", dtype=torch.float64)
    head = load_head(folder / "theirs", target)
    model = model.double()
    model.embed_tokens.weight.data = target.embed.weight.detach().clone()
    model.verifier_lm_head.weight.data = model.lm_head.weight.data
    if head.draft_ids is None:
        model.lm_head.weight.data = target.head.weight.detach().clone()
    tokens = torch.randint(0, tiny.VOCAB, (1, 128))  # their mask takes multiples of 128 places
    with torch.no_grad():
        hidden = target.causal(tokens, taps=(*head.taps, target.num_layers)).hidden
        ours = head.unroll(tokens, hidden)
        states, logits, _, _, places = model._backbone_forward(
            hidden_states=torch.cat([hidden[tap] for tap in BLOCK["aux_hidden_state_layer_ids"]], dim=-1),
            input_ids=tokens,
            loss_mask=torch.ones_like(tokens),
            verifier_last_hidden_states=hidden[target.num_layers],
            document_ids=torch.zeros_like(tokens),
            max_anchors=32,
        )
        states, logits, places = states.view(32, 4, -1), logits.view(32, 4, -1), places.view(32, 4)
        logits = logits + added(model, states, tokens[0], places)
    first = head.options.first_slot
    for block, place in zip(logits, places[:, 0], strict=True):
        assert torch.allclose(ours.logits[0, place], block[first:], atol=1e-5), place


def added(model, states, tokens, places):
    """What the package's heads add to the logits of blocks of ``states`` [A, b, H] at ``places`` [A, b]."""
    whole = tokens[places]
    shifted = torch.cat((whole[:, :1], whole[:, :-1]), dim=1)
    before = whole if model.config.sample_from_anchor else shifted
    if hasattr(model, "markov_head"):
        return model.markov_head.block_bias(prev_token_ids=before, hidden_states=states)
    if hasattr(model, "candidate_selector"):
        selector = model.candidate_selector
        return selector.context(states, before) @ selector.successor_codebook.T
    if not hasattr(model, "refiner_head"):
        return 0.0
    if not model.config.sample_from_anchor:
        before[:, 0] = tokens[(places[:, 0] - 1).clamp(min=0)]
    return model.refiner_head.block_bias(before, states)


@pytest.mark.parametrize("name", ["mtp"])
def test_logits_of_a_module_are_those_of_the_packages_layer_at_every_step(name, saved):
    _, model, folder = saved
    target = load(folder / "target", dtype=torch.float64)
    head = load_head(folder / "theirs", target)
    model = model.double()
    model.embed_tokens.weight.data = target.embed.weight.detach().clone()
    model.lm_head.weight.data = target.head.weight.detach().clone()
    tokens = torch.randint(0, tiny.VOCAB, (1, 30))
    outs = []
    model.mtp_layers[0].register_forward_hook(lambda _, __, out: outs.append(out))
    with torch.no_grad():
        hidden = target.causal(tokens, taps=head.taps).hidden
        ours = head.unroll(tokens, hidden)
        for anchor in (0, 7, 20):  # of a draft, whose pairs take the places of the target's behind it
            states = hidden[target.num_layers].clone()
            for step in range(3):
                outs.clear()
                theirs, _, _ = model(input_ids=tokens, hidden_states=states)
                states[0, anchor + step + 1] = outs[0][0, anchor + step]  # of the first of its steps
                assert torch.allclose(ours.logits[0, anchor, step], theirs[0][0, anchor + step], atol=1e-6), step
