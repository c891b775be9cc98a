"""The laws that the tokens of a text should come from, apart from all decoding: one plain forward of the whole text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.tree import Tree
from paceline.models.base import LM


@torch.inference_mode()
def laws_after(lm: LM, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """The law [T, V] at temperature 1 before each of ``tokens``, in double precision on the host."""
    text = torch.tensor([[*prompt, *tokens[:-1]]], device=lm.device)
    text = text.clamp(max=lm.vocab_size - 1)
    tree = Tree.make_chain(text, torch.ones_like(text, dtype=torch.bool))
    logits = lm(tree, lm.new_cache(1, text.shape[1]).view()).logits
    assert logits is not None
    return logits[0, len(prompt) - 1 :].double().softmax(-1).cpu()
