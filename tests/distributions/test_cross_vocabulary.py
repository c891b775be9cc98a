"""A draft of another vocabulary: the joint distribution of several tokens is the target's under every verifier.

The draft lacks one of the target's tokens, which it reads as two of its own, so its distribution covers the others
alone (TLI, 2502.05202). Cases, groups and bounds are those of test_end_to_end.
"""

from dataclasses import replace

import pytest
import torch

from paceline.draft_heads.vocab_map import MappedVocab
from paceline.drafters.model import ModelDrafter
from paceline.models.native.decoder import DecoderLM
from tests.distributions import end_to_end
from tests.distributions.end_to_end import SHAPES, cases, chances, sample
from tests.distributions.models import VOCAB, pair
from tests.distributions.test_end_to_end import BOUND, ROWS, SEQUENCES

pytestmark = pytest.mark.one_in(15)

LACKED, ORDER = 2, (3, 0, 4, 1)
OWN = 2  # tokens that only the draft has
KNOWN = [case for case in cases(lossless=True) if case.shape in ("chains", "tree")]


def drafter(draws, shape):
    lm = DecoderLM(replace(pair().draft.config, vocab_size=len(ORDER) + OWN))
    rows = torch.tensor([*ORDER, LACKED, 0])
    state = dict(pair().draft.state_dict())
    for name in ("embed.weight", "head.weight"):
        if name in state:
            state[name] = state[name][rows]
    lm.load_state_dict(state)
    vocab = MappedVocab(target_ids=[*ORDER, -1, -1], target_size=VOCAB, spellings={LACKED: [5, 4]})
    return ModelDrafter(lm=lm.requires_grad_(False).eval(), vocab=vocab, draws=draws, shape=shape)


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in KNOWN])
def test_the_joint_distribution_is_the_targets(case, monkeypatch):
    monkeypatch.setattr(
        end_to_end, "drafter_of", lambda name, *, draw, shape: drafter(frozenset({draw}), SHAPES[case.shape][0])
    )
    found = sample(case, num_sequences=SEQUENCES, rows=ROWS, seed=9000 + KNOWN.index(case))
    assert found.num_sequences == SEQUENCES
    assert min(chances(found).values()) >= BOUND, chances(found)
    assert found.acceptance[0] > 0.3, found.acceptance
