"""How far a drafted law lies from the target's, entry by entry. Knows nothing of heads, models or data.

N entries, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ETA = 3.0  # how soon the LK mixture goes over from divergence to total variation


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """What is compared: two laws and what the text says, in nats."""

    own: Tensor  # [N, V] log q, of who drafts
    wanted: Tensor  # [N, V] log p, of the target
    text: Tensor  # [N] the token that follows in the text

    @property
    def acceptance(self) -> Tensor:
        """The share of drafts that any lossless rule can keep, the sum of min(p, q): [N]."""
        return torch.minimum(self.own, self.wanted).exp().sum(-1)


Loss: TypeAlias = Callable[[Laws], Tensor]  # [N]


def text_entropy(laws: Laws) -> Tensor:
    """Cross-entropy of the text's next token."""
    return F.nll_loss(laws.own, laws.text, reduction="none")


def argmax_entropy(laws: Laws) -> Tensor:
    """Cross-entropy of the target's likeliest token, which serves greedy acceptance."""
    return F.nll_loss(laws.own, laws.wanted.argmax(-1), reduction="none")


def divergence(laws: Laws) -> Tensor:
    """KL(target || draft)."""
    return F.kl_div(laws.own, laws.wanted, log_target=True, reduction="none").sum(-1)


def total_variation(laws: Laws) -> Tensor:
    """Half the sum of abs(p - q): the share of drafts that is refused."""
    return 0.5 * (laws.own.exp() - laws.wanted.exp()).abs().sum(-1)


def acceptance_loss(laws: Laws) -> Tensor:
    """-log of the sum of min(p, q) (2602.23881), from logarithms, so that laws far apart still have a gradient."""
    return -torch.minimum(laws.own, laws.wanted).logsumexp(-1)


def acceptance_mixture(laws: Laws) -> Tensor:
    """Divergence while little is accepted, total variation as more is (2602.23881): shares exp(-3 a) and the rest."""
    share = torch.exp(-ETA * laws.acceptance.detach())
    return share * divergence(laws) + (1 - share) * total_variation(laws)


LOSSES: Mapping[str, Loss] = {
    "text": text_entropy,
    "argmax": argmax_entropy,
    "kl": divergence,
    "tv": total_variation,
    "lk_alpha": acceptance_loss,
    "lk_lambda": acceptance_mixture,
}


class Compared(NamedTuple):
    """Of every entry: [N] each, only the first with a gradient."""

    loss: Tensor
    acceptance: Tensor
    greedy: Tensor  # 1 where both laws have the same likeliest token


@final
class Comparison:
    """A mixture of losses: the sum of ``terms``, names in LOSSES with their weights. Raises ValueError for other names.

    In float32, whatever the logits are; ``chunk`` entries at once, and those again in the backward pass, so that memory
    is of a chunk and not of all.
    """

    def __init__(self, *, terms: Mapping[str, float], chunk: int = 1024) -> None:
        for name in terms:
            if name not in LOSSES:
                raise ValueError(f"unknown loss {name!r}; known: {', '.join(LOSSES)}")
        if not terms:
            raise ValueError(f"a loss without terms: give at least one of {', '.join(LOSSES)} with its weight")
        self.terms = [(LOSSES[name], weight) for name, weight in terms.items()]
        self.chunk = chunk

    def __call__(self, own: Tensor, wanted: Tensor, index: Tensor, text: Tensor) -> Compared:
        """Logits ``own`` [N, V] against those of ``wanted`` [M, V] in the rows ``index`` [N]; ``text`` [N]."""
        if len(own) <= self.chunk:
            return self._compare(own, wanted, index, text)
        chunks = zip(own.split(self.chunk), index.split(self.chunk), text.split(self.chunk), strict=True)
        parts = [
            checkpoint(self._compare, part, wanted, at, after, use_reentrant=False, preserve_rng_state=False)
            for part, at, after in chunks
        ]
        return Compared(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _compare(self, own: Tensor, wanted: Tensor, index: Tensor, text: Tensor) -> Compared:
        with torch.no_grad():
            target = wanted[index].float().log_softmax(-1)
        laws = Laws(own=own.float().log_softmax(-1), wanted=target, text=text)
        loss = torch.stack([weight * term(laws) for term, weight in self.terms]).sum(0)
        with torch.no_grad():
            greedy = (laws.own.argmax(-1) == laws.wanted.argmax(-1)).float()
            return Compared(loss, laws.acceptance, greedy)


def next_token_entropy(logits: Tensor, text: Tensor, *, chunk: int = 1024) -> Tensor:
    """Cross-entropy of ``text`` [N] under ``logits`` [N, V], in nats: [N]; by chunks as above."""
    if len(logits) <= chunk:
        return _entropy(logits, text)
    parts = zip(logits.split(chunk), text.split(chunk), strict=True)
    return torch.cat([_checkpointed(part, own) for part, own in parts])


def _checkpointed(logits: Tensor, text: Tensor) -> Tensor:
    found = checkpoint(_entropy, logits, text, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(found, Tensor)
    return found


def _entropy(logits: Tensor, text: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), text, reduction="none")
