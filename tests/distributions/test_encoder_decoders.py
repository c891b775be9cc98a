"""The joint distribution of tokens of an encoder-decoder, given its source, is the target's under every verifier.

Four groups of rows differ in source, prompt and warping and are decoded in one batch. What they write is counted and
compared with the exact distribution, which comes from transformers' forward over all continuations. Were all verifiers
right, a false alarm anywhere in this file would have a probability of at most ``LEVEL``.
"""

from dataclasses import dataclass, field, replace
from functools import cache

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from paceline.core.context import Context
from paceline.core.tree import Draw
from paceline.decode import Decoder
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.model import ModelDrafter
from paceline.models.from_transformers import from_transformers
from paceline.verifiers import VERIFIERS
from tests import tiny
from tests.distributions.end_to_end import ALL_SHAPES, Group, joint_distribution, sequences_of
from tests.distributions.gtest import g_test, tail
from tests.distributions.models import VOCAB
from tests.drafters.test_early_exit import head_of
from tests.harness import Alternating
from tests.tables import index_of

LEVEL, ROWS, BEGIN = 1e-6, 1200, 0
SHAPES = {"chain": ALL_SHAPES["chains"], "tree": ALL_SHAPES["tree"]}
LOSSLESS = [name for name in VERIFIERS.builtin if VERIFIERS.find(name).lossless]


@dataclass(frozen=True, kw_only=True)
class Sourced(Group):
    """A group whose rows have one source."""

    source: tuple[int, ...]
    context: Context = field(init=False, hash=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "context", Context({"input_ids": torch.tensor(self.source)}))

    def request(self, seed, cap):
        return replace(super().request(seed, cap), context=self.context)


GROUPS = (
    Sourced(name="plain", prompt=(BEGIN,), source=(3, 1, 4), length=3, more=1, share=4, warp=dict(temperature=1.0)),
    Sourced(name="other source", prompt=(BEGIN,), source=(2,), length=3, more=1, share=4, warp=dict(temperature=1.0)),
    Sourced(name="begun", prompt=(BEGIN, 2), source=(4, 4, 1, 0, 2), length=3, share=4, warp=dict(temperature=0.7)),
    Sourced(name="top-p", prompt=(BEGIN,), source=(1, 3), length=3, share=4, warp=dict(temperature=1.2, top_p=0.8)),
)


@cache
def models():
    """transformers' target in float64; ours of the same weights; and a draft, which is the target with noise."""
    torch.manual_seed(5)
    sizes = dict(d_model=16, d_kv=8, num_heads=2, d_ff=24, num_layers=1, num_decoder_layers=2, n_positions=8)
    config = T5Config(vocab_size=VOCAB, relative_attention_num_buckets=8, decoder_start_token_id=BEGIN, **sizes)
    known = T5ForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for name, tensor in known.state_dict().items():
            if tensor.dim() > 1:
                tensor.normal_(0.0, 1.0 if "shared" in name else 0.5)
        known.decoder.final_layer_norm.weight.fill_(4.0)  # or all sequences would be about as likely
        other = tiny.noisy(known, 0.1)
    return known, from_transformers(known), from_transformers(other)


def logits_given(source):
    """What gives the target's logits [n, V] after sequences [n, T] of a source."""
    known, ids = models()[0], torch.tensor(source)[None]
    return lambda tokens: known(input_ids=ids.expand(len(tokens), -1), decoder_input_ids=tokens).logits[:, -1]


@cache
def exact(group):
    return joint_distribution(group, logits_given(group.source))


def drafter_of(kind, draws, shape):
    _, target, draft = models()
    if kind == "encoder-decoder":
        return ModelDrafter(lm=draft, draws=draws, shape=shape)
    return EarlyExitDrafter(head=head_of(target, exit_layer=1, num_blocks=0), draws=draws, shape=shape)


def sampled(verifier, drafter, lengths):
    """Sequences of all groups, by group, and the tokens per step."""
    plan = Alternating(*lengths, most=max(lengths))
    target = models()[1]
    decoder = Decoder(target=target, drafter=drafter, verifier=verifier, plan=plan, rows=ROWS, max_length=6)
    asked = [GROUPS[row % len(GROUPS)].request(row, None) for row in range(ROWS)]
    decoder.admit(asked, list(range(ROWS)))
    while bool(decoder.batch.active.any()):
        decoder.step()
    rows = torch.arange(ROWS)
    found = [sequences_of(decoder, rows[at :: len(GROUPS)], group) for at, group in enumerate(GROUPS)]
    return found, int(decoder.stats.emitted.sum()) / int(decoder.stats.steps.sum())


def chances(found):
    """The p-value of each group, and of the groups in each other's place."""
    counts = [torch.bincount(index_of(one, VOCAB), minlength=VOCAB**3).double() for one in found]
    own = [tail(*g_test(one, exact(group))) for one, group in zip(counts, GROUPS, strict=True)]
    return own, tail(*g_test(counts[0], exact(GROUPS[1])))


CASES = [
    (name, draw, shape, kind)
    for name in LOSSLESS
    for draw in VERIFIERS.find(name).wants[:1]
    for shape, (made, _) in SHAPES.items()
    if made is None or (VERIFIERS.find(name).branches and draw in made.draws)
    for kind in ("encoder-decoder", "early exit")
]


@pytest.mark.each_value
@pytest.mark.parametrize(("name", "draw", "shape", "kind"), CASES)
def test_the_joint_distribution_given_a_source_is_the_targets(name, draw, shape, kind):
    made, lengths = SHAPES[shape]
    found, length = sampled(VERIFIERS.find(name)(), drafter_of(kind, frozenset({draw}), made), lengths)
    own, swapped = chances(found)
    assert min(own) > LEVEL / (len(CASES) * len(GROUPS)), own
    assert swapped < 1e-6, "the source decides"
    assert length > (1.3 if kind == "encoder-decoder" else 1.15), length


def test_a_lenient_verifier_is_seen():
    drafter = drafter_of("encoder-decoder", frozenset({Draw.IID}), None)
    own, _ = chances(sampled(VERIFIERS.find("lossy_lenient")(), drafter, (3, 1, 2))[0])
    assert min(own) < LEVEL
