"""Rejection sampling from a text-to-semantic model, guided and not: the joint distribution of a block and of two, by
enumeration, is that of naive forwards.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch

from paceline.core.guidance import Guidance
from paceline.core.tree import Draw
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.verifiers import VERIFIERS
from tests.distributions.exact import distance, enumerate_steps, extend
from tests.drafters.test_early_exit import head_of
from tests.harness import request
from tests.models.semantic_models import Naive, context, model
from tests.tables import index_of

SEMANTIC_IDS = 2
VOCAB, START = SEMANTIC_IDS + 2, SEMANTIC_IDS + 1
SOURCE, SCALE = (3, 0, 7), 1.7


def small():
    sizes = dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, intermediate_size=16, decoder_layers=3)
    return model(4, 0.35, 0.8, num_semantic_ids=SEMANTIC_IDS, encoder_layers=1, **sizes)


def after(naive, count):
    """The distribution after every sequence of ``count`` tokens [V ** count, V]."""
    sequences = list(product(range(VOCAB), repeat=count))
    return torch.stack([naive(torch.tensor([[START, *tokens]])).logits[0, -1].softmax(-1) for tokens in sequences])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize(("k", "steps"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_the_joint_distribution_is_the_targets(verifier, k, steps, guided):
    lm, length = small(), steps * (k + 1)
    asked = replace(request([START], max_tokens=length + k + 2, temperature=1.0), context=context(SOURCE))
    if guided:
        asked = replace(asked, guidance=Guidance(scale=SCALE, prompt=(START,), context=context(())))
    decoder, weights, accepted = enumerate_steps(
        target=lm,
        drafter=lambda: EarlyExitDrafter(head=head_of(lm, exit_layer=2, num_blocks=0), draws=frozenset({Draw.IID})),
        verifier=VERIFIERS.find(verifier),
        k=k,
        steps=steps,
        asked=asked,
    )
    naive = Naive(lm, SOURCE, scale=SCALE if guided else 1.0)
    batch = decoder.batch
    num = batch.length - 1
    found = wanted = torch.ones(1, dtype=torch.float64)
    found = found * 0
    for count in range(1, length + 1):
        probs = after(naive, count - 1)
        rows = (num == count).nonzero()[:, 0]
        cells = index_of(batch.tokens[rows, 1 : 1 + count], VOCAB)
        found = extend(found, probs).index_add_(0, cells, weights[rows])
        wanted = extend(wanted, probs)
    assert abs(float(weights.sum()) - 1) < 1e-9 and 0.2 * k < accepted < k
    assert distance(found, wanted) <= 1e-12
    assert distance(wanted, wanted.flip(0)) > 0.1, "a distribution that says nothing"
