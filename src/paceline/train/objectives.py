"""What is minimised. Knows nothing of data, optimisers or files.

B rows, T sequence length, V vocabulary.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.decoder import DecoderLM


class Objective(Protocol):
    """A loss of a model on tokens [B, T + 1]."""

    def __call__(self, model: DecoderLM, tokens: Tensor) -> Tensor: ...


def next_token(model: DecoderLM, tokens: Tensor) -> Tensor:
    """Cross-entropy of every next token, nats per token."""
    logits = model.causal(tokens[:, :-1]).logits
    assert logits is not None
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Distillation:
    """A draft against its target: ``soft`` parts KL(target || draft), the rest cross-entropy of the target's argmax.

    The first serves acceptance when sampling, the second acceptance when greedy.
    """

    def __init__(self, target: DecoderLM, *, soft: float) -> None:
        self.target = target
        self.soft = soft

    def __call__(self, model: DecoderLM, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.target.causal(tokens[:, :-1]).logits
        logits = model.causal(tokens[:, :-1]).logits
        assert wanted is not None and logits is not None
        wanted, own = wanted.flatten(0, 1).float(), logits.flatten(0, 1).float()
        soft = F.kl_div(own.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")
        return self.soft * soft + (1 - self.soft) * F.cross_entropy(own, wanted.argmax(-1))
