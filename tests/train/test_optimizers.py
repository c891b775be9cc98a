"""Which matrices Muon updates, how much, and that rates, checkpoints and settings are as with AdamW alone."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from paceline.draft_heads import DRAFT_HEADS
from paceline.train.config import HeadSection
from paceline.train.loop.config import OptimiserSection
from paceline.train.loop.optimizers import is_hidden_matrix, make_optimizers
from paceline.train.setup import build_head
from tests import tiny
from tests.train.trainers import lines, trainer

MUON = {"kind": "muon", "learning_rate": 0.004, "muon_learning_rate": 0.02}
DRAFT_VOCAB = 41
TAPS = {"taps": (1, 2, 3)}
BLOCK = {**TAPS, "block_size": 4, "num_layers": 1, "mask_token_id": 0, "markov_rank": 8}
HEADS = {
    "block": ("block", {**TAPS, "block_size": 4, "num_layers": 1, "mask_token_id": 0}),
    "dspark": ("block", {**BLOCK, "confidence": True}),
    "xpress": ("block", {**BLOCK, "markov_head": "refiner"}),
    "dflash2": ("block", {**BLOCK, "markov_head": "bilinear", "candidates": 8, "conv_taps": 2}),
    "eagle": ("eagle", {}),
    "eagle3": ("eagle3", {**TAPS, "draft_vocab_size": DRAFT_VOCAB}),
    "early exit": ("early_exit", {"exit_layer": 1}),
    "early exit with an LM head": ("early_exit", {"exit_layer": 1, "own_head": True}),
    "hydra": ("hydra", {"draft_vocab_size": DRAFT_VOCAB}),
    "linear prophet": ("linear_prophet", {}),
    "medusa": ("medusa", {"draft_vocab_size": DRAFT_VOCAB}),
    "mlp speculator": ("mlp_speculator", {"draft_vocab_size": DRAFT_VOCAB}),
    "mtp": ("mtp", {}),
    "prophet": ("prophet", {"num_blocks": 1}),
}


def section(**fields):
    return OptimiserSection.model_validate(MUON | fields)


def test_all_kinds_of_heads_are_here():
    assert {kind for kind, _ in HEADS.values()} == set(DRAFT_HEADS.builtin)


@pytest.mark.parametrize("name", HEADS)
def test_muon_updates_every_matrix_of_a_head_but_tables_of_tokens(name):
    kind, config = HEADS[name]
    target = tiny.native(tiny.llama(1, num_hidden_layers=4)).requires_grad_(False)
    head = build_head(HeadSection(kind=kind, name="embed", config=config), target, seed=0, index=0)
    trained = {name: part for name, part in head.named_parameters() if part.requires_grad}
    for part, parameter in trained.items():
        matrix = parameter.dim() == 2 and min(parameter.shape) > 1
        table = not {tiny.VOCAB, DRAFT_VOCAB}.isdisjoint(parameter.shape)
        assert is_hidden_matrix(f"heads.embed.{part}", parameter) == (matrix and not table), part
    assert any(is_hidden_matrix(part, parameter) for part, parameter in trained.items())


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_muon_updates_the_matrices_of_a_models_layers(make):
    """Not its embeddings, positions and LM head."""
    model = tiny.native(make(1))
    for name, parameter in model.named_parameters():
        assert is_hidden_matrix(name, parameter) == (".blocks." in f".{name}" and parameter.dim() == 2), name


def test_an_update_of_muon_is_as_large_as_one_of_adamw_in_every_direction():
    """All singular values are about 1, in whatever proportion the gradient has them, times the rate; RMS 0.2."""
    matrix, bias = nn.Parameter(torch.zeros(24, 12)), nn.Parameter(torch.zeros(24))
    optimizers = make_optimizers({"part.up.weight": matrix, "part.up.bias": bias}, section(weight_decay=0.0))
    generator = torch.Generator().manual_seed(0)
    matrix.grad, bias.grad = torch.randn(24, 12, generator=generator), torch.ones(24)
    matrix.grad[:, 0] *= 100
    for optimizer in optimizers:
        optimizer.step()
    values = torch.linalg.svdvals(matrix.detach()) / (0.02 * 0.2 * 24**0.5)
    assert ((values > 0.5) & (values < 1.3)).all()
    assert matrix.detach().square().mean().sqrt() == pytest.approx(0.02 * 0.2, rel=0.2)
    assert torch.allclose(bias, torch.tensor(-0.004))


def test_only_matrices_decay_and_every_part_has_its_groups():
    """The parts are what joint training gives rates of their own."""
    shapes = {
        "trunk.up.weight": (3, 2),
        "trunk.up.bias": (3,),
        "heads.fc.weight": (2, 3),
        "heads.lm_heads.0.weight": (4, 2),
    }
    parameters = {name: nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
    optimizers = make_optimizers(parameters, section(weight_decay=0.5))
    parts = [[group["part"] for group in optimizer.param_groups] for optimizer in optimizers]
    assert parts == [["trunk", "heads"], ["trunk", "heads"]]
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    left = {name: float(parameter.detach().mean()) for name, parameter in parameters.items()}
    assert left == pytest.approx(dict(zip(shapes, (1 - 0.02 / 2, 1, 1 - 0.02 / 2, 1 - 0.004 / 2), strict=True)))


def test_rates_follow_one_schedule(tmp_path):
    run = trainer(tmp_path, optimiser=MUON)
    run.run()
    muon, adamw = ([group["lr"] for group in optimizer.param_groups] for optimizer in run.optimizers)
    assert muon == pytest.approx([0.02 / 0.004 * adamw[0]]) and len(set(adamw)) == 1
    assert [line["learning_rate"] for line in lines(tmp_path) if "loss" in line][-1] == adamw[0]


def test_muon_learns(tmp_path):
    trainer(tmp_path, steps=80, rate=1e-2, optimiser={**MUON, "learning_rate": 1e-2}).run()
    losses = [line["loss"] for line in lines(tmp_path) if "loss" in line]
    assert losses[0] > 3.5 and losses[-1] < 0.5 * losses[0]


def test_a_rate_without_muon_is_refused():
    with pytest.raises(ValidationError, match=r"muon_learning_rate=0.02 with kind=adamw: .* give kind: muon, or leave"):
        section(kind="adamw")
    assert make_optimizers({}, section()) == []
