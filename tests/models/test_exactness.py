"""Which models are batch-invariant, and what exact=True refuses."""

import logging

import pytest
import torch

from paceline.api import SamplingParams, generate, load
from paceline.cli import run
from paceline.models.batch_invariance import find_batch_dependence
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.loading import ModelError
from tests.api.checkpoints import pair
from tests.kernels.cpu.models import native


class Broken:
    """A model whose logits change under a condition."""

    def __init__(self, lm, change):
        self.lm, self.change = lm, change

    def __getattr__(self, name):
        return getattr(self.lm, name)

    def __call__(self, tree, cache, **options):
        output = self.lm(tree, cache, **options)
        output.logits[0, 0, 0] += self.change(tree, cache) * 1e-12
        return output


CHANGES = {
    "the 1 tokens drafted beside it": lambda tree, cache: tree.num_nodes == 2,
    "the 5 tokens drafted beside it": lambda tree, cache: tree.num_nodes == 6,
    "the prompt that it is read with": lambda tree, cache: tree.num_nodes > 6,
    "the 2 other rows of its batch": lambda tree, cache: tree.tokens.shape[0] > 1,
    "the capacity of the cache": lambda tree, cache: cache.capacity > 46,
}


@pytest.mark.parametrize("found", CHANGES)
def test_each_batch_dependence_is_found_and_named(found):
    model = Broken(CpuDecoder(native("grouped", torch.float64)), CHANGES[found])
    assert find_batch_dependence(model, rows=3, num_nodes=6) == found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", ["grouped", "gpt2", "mistral-window", "gemma"])
def test_the_kernel_is_batch_invariant(layout, dtype):
    assert find_batch_dependence(CpuDecoder(native(layout, dtype)), rows=3, num_nodes=6) is None


def test_eager_models_are_refused():
    with pytest.raises(ModelError, match=r"exact=True: with .* depend, .*, on the .*; load it natively"):
        load(pair().target, dtype="float32", device="cpu", exact=True, enforce_eager=True)


def test_exact_output_matches_plain_decoding_and_refuses_other_verifiers():
    target = load(pair().target, dtype="bfloat16", device="cpu", exact=True)
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    (plain,) = generate(target, [3, 1, 4], params)
    (drafted,) = generate(target, [3, 1, 4], params, drafter=pair().draft, num_draft_tokens=5)
    assert plain.tokens == drafted.tokens
    with pytest.raises(ValueError, match=r"verifier 'rejection' under exact=True: .* choose 'coupled'"):
        generate(target, [3, 1, 4], params, drafter=pair().draft, verifier="rejection")


def test_the_command_line_option_is_passed_on(capsys, caplog):
    words = ["generate", "--model", str(pair().target), "--exact", "--max-tokens", "3", "def"]
    assert run(words) == 0
    with caplog.at_level(logging.ERROR):
        assert run([*words, "--enforce-eager", "--dtype", "float32"]) != 0
    assert "exact=True" in capsys.readouterr().err
