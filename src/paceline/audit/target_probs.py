"""Next-token distributions of a model from one plain forward of a whole sequence, independent of the decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.tree import Tree
from paceline.models.base import LM


@torch.inference_mode()
def next_token_probs(lm: LM, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """The distribution [T, V] at temperature 1 before each of ``tokens``, in double precision on the host."""
    token_ids = torch.tensor([[*prompt, *tokens[:-1]]], device=lm.device).clamp(max=lm.vocab_size - 1)
    tree = Tree.make_chain(token_ids, torch.ones_like(token_ids, dtype=torch.bool))
    logits = lm(tree, lm.new_cache(1, token_ids.shape[1]).view()).logits
    assert logits is not None
    return logits[0, len(prompt) - 1 :].double().softmax(-1).cpu()
