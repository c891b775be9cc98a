"""Hidden states of a target on their way into a draft: along what a step committed, and read by a model of their own.

Knows no drafter. B rows, n states, N nodes, D depth, H hidden size.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.cache import View
from paceline.core.tree import Outcome, Resume, Tree
from paceline.models.base import LM, Head, Output


def path_hidden(output: Output, tap: int, outcome: Outcome) -> Tensor:
    """The states [B, 1 + D, H] at ``tap`` of the root and of the accepted path; what is behind its end means nothing.

    The first ``outcome.num_committed`` of them are of the tokens that came into the target's cache.
    """
    hidden = output.hidden[tap]
    nodes = F.pad(outcome.path, (1, 0)).clamp(min=0)  # the root is node 0
    return hidden.gather(1, nodes[..., None].expand(-1, -1, hidden.shape[-1]))


def read_hidden(lm: LM, cache: View, hidden: Tensor, count: Tensor, *, head: Head = Head.NONE) -> Output:
    """Commit the first ``count`` [B] of ``hidden`` [B, n, H] to ``cache`` as what ``lm`` reads in place of embeddings.

    Returns the forward's Output; Head.LAST gives the logits after the last of them.
    """
    rows, size = hidden.shape[:2]
    valid = torch.arange(size, device=hidden.device) < count[:, None]
    tokens = torch.zeros(rows, size, dtype=torch.int64, device=hidden.device)  # nobody looks them up
    resume = Resume(layer=0, hidden=hidden, ready=valid, first=size)
    output = lm(Tree.make_chain(tokens, valid), cache, head=head, resume=resume)
    cache.commit(count)
    return output
