"""What the sequences of tests/distributions/end_to_end come from: a tiny transformer, and what drafts for it.

V vocabulary, n sequences, T tokens of each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.tree import Draw
from paceline.draft_heads.base import DraftHead
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Shape
from paceline.models.native.decoder import DecoderLM
from tests import tiny
from tests.drafters import test_early_exit as early_exit
from tests.drafters import test_linear_prophet as linear_prophet
from tests.drafters import test_prophet as prophet

VOCAB = 5  # the noise of a choice comes in groups of four words: five tokens take two


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Target and draft, each as transformers runs it in float64 and as we do in float32."""

    target: DecoderLM
    draft: DecoderLM
    target_known: PreTrainedModel
    draft_known: PreTrainedModel


@cache
def pair() -> Pair:
    known = tiny.llama(
        6,
        dtype=torch.float32,
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
    )
    with torch.no_grad():
        other = tiny.noisy(known, 0.2)
    target, draft = tiny.native(known), tiny.native(other)
    return Pair(target=target, draft=draft, target_known=known.double(), draft_known=other.double())


@cache
def heads() -> dict[str, DraftHead]:
    """Heads of the target, none of them trained: what they say comes of its own weights."""
    target = pair().target
    with torch.no_grad():
        return {
            "early exit": early_exit.head_of(target, scale=0.2),
            "recycling exit": early_exit.recycling(target, num_blocks=1),
            "prophet": prophet.echo(target, 0.1),
            "linear prophet": linear_prophet.fitted(target),
        }


def drafter_of(name: str, *, draw: Draw, shape: Shape | None) -> Drafter:
    """A fresh drafter: the draft model, or what drafts with the head of that name."""
    draws = frozenset({draw})
    if name == "model":
        return ModelDrafter(lm=pair().draft, draws=draws, shape=shape)
    head = heads()[name]
    return DRAFTERS.find(head.kind)(head=head, draws=draws, shape=shape)


def target_logits(tokens: Tensor) -> Tensor:
    """The target's logits [n, V] after sequences [n, T]."""
    return pair().target_known(tokens).logits[:, -1]


def draft_logits(name: str) -> Callable[[Tensor], Tensor]:
    """What gives the logits [n, V] of a draft's first token after sequences [n, T]."""
    if name == "model":
        return lambda tokens: pair().draft_known(tokens).logits[:, -1]

    def of_head(tokens: Tensor) -> Tensor:
        head = heads()[name]
        hidden = pair().target.causal(tokens, taps=head.taps).hidden
        return head.unroll(tokens, hidden).logits[:, -1, 0].double()

    return of_head
