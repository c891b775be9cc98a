"""Losses between a draft distribution and the target's at the same positions, and the cross-entropy of the next token.

N positions, V vocabulary, K draft vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.train.tasks.positions import by_position, finite

OUTSIDE = -100
TOP_K = 10  # of the paper
ETA = 3.0  # how fast the LK mixture moves from KL divergence to total variation


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """Both distributions and the next token of the data, in nats."""

    draft: Tensor  # [N, V] log q
    target: Tensor  # [N, V] log p
    target_probs: Tensor  # [N, V] p
    likeliest: Tensor  # [N] the target's argmax
    next_token: Tensor  # [N] the next token of the data; OUTSIDE where the draft's vocabulary lacks it

    @classmethod
    def of(cls, draft: Tensor, target: Tensor, next_token: Tensor) -> "LossInputs":
        """Of log probabilities."""
        with torch.no_grad():
            probs, likeliest = target.exp(), target.argmax(-1)
        return cls(draft=draft, target=target, target_probs=probs, likeliest=likeliest, next_token=next_token)

    @property
    def acceptance(self) -> Tensor:
        """Acceptance probability of a lossless verifier, the sum of min(p, q): [N]."""
        return torch.minimum(self.draft.exp(), self.target_probs).sum(-1)


Loss: TypeAlias = Callable[[LossInputs], Tensor]  # [N]


def data_cross_entropy(inputs: LossInputs) -> Tensor:
    """Cross-entropy of the next token of the data; 0 where the draft cannot say it."""
    return F.nll_loss(inputs.draft, inputs.next_token, reduction="none", ignore_index=OUTSIDE)


def argmax_cross_entropy(inputs: LossInputs) -> Tensor:
    """Cross-entropy of the target's argmax, which optimises greedy acceptance."""
    return F.nll_loss(inputs.draft, inputs.likeliest, reduction="none")


def kl_divergence(inputs: LossInputs) -> Tensor:
    """KL(target || draft)."""
    return (inputs.target_probs * (inputs.target - inputs.draft)).sum(-1)


def top_k_cross_entropy(inputs: LossInputs) -> Tensor:
    """Cross-entropy of the target's distribution over its 10 likeliest tokens alone (HASS, 2408.15766): none is
    renormalised.
    """
    likeliest = inputs.target.topk(min(TOP_K, inputs.target.shape[-1]), dim=-1)
    return -(likeliest.values.exp() * inputs.draft.gather(-1, likeliest.indices)).sum(-1)


def total_variation(inputs: LossInputs) -> Tensor:
    """Half the sum of abs(p - q): the probability that a draft is rejected."""
    return 0.5 * (inputs.draft.exp() - inputs.target_probs).abs().sum(-1)


def acceptance_loss(inputs: LossInputs) -> Tensor:
    """-log of the sum of min(p, q) (2602.23881), in log space, so that distant distributions still have a gradient."""
    return -torch.minimum(inputs.draft, inputs.target).logsumexp(-1)


def acceptance_mixture(inputs: LossInputs) -> Tensor:
    """KL divergence at low acceptance a, total variation at high (2602.23881): weights exp(-3 a) and 1 - exp(-3 a)."""
    share = torch.exp(-ETA * inputs.acceptance.detach())
    return share * kl_divergence(inputs) + (1 - share) * total_variation(inputs)


LOSSES: Mapping[str, Loss] = {
    "text": data_cross_entropy,
    "argmax": argmax_cross_entropy,
    "kl": kl_divergence,
    "top_k": top_k_cross_entropy,
    "tv": total_variation,
    "lk_alpha": acceptance_loss,
    "lk_lambda": acceptance_mixture,
}


def check_terms(terms: Mapping[str, float]) -> Mapping[str, float]:
    """``terms`` themselves. Raises ValueError if there are none, or for a name that is not in LOSSES."""
    unknown = sorted(terms.keys() - LOSSES.keys())
    if unknown or not terms:
        raise ValueError(f"unknown terms {unknown}; give some of {', '.join(LOSSES)} with their weights")
    return terms


class LossOutput(NamedTuple):
    """Values per position: [N] each. Only the loss has a gradient."""

    loss: Tensor
    acceptance: Tensor
    greedy: Tensor  # 1 where both distributions have the same argmax


@final
class DistillationLoss:
    """A weighted sum of losses: ``terms`` maps names in LOSSES to weights. Raises ValueError for other names.

    Computed in float32 for logits of any dtype, for at most ``chunk`` positions at a time (None: as many as suit the
    device), with their gradient.
    """

    def __init__(self, *, terms: Mapping[str, float], chunk: int | None = None) -> None:
        self.terms = [(LOSSES[name], weight) for name, weight in check_terms(terms).items()]
        self.chunk = chunk

    def __call__(
        self, draft: Tensor, target: Tensor, index: Tensor, next_token: Tensor, draft_ids: Tensor | None = None
    ) -> LossOutput:
        """Logits ``draft`` [N, V] against the rows ``index`` [N] of logits ``target`` [M, V]; ``next_token`` [N].

        With ``draft_ids`` [K], ``draft`` [N, K] are logits of these ids alone. The loss is then against the target's
        distribution over them, and 0 where the target's argmax is none of them (EAGLE-3, 2503.01840); acceptance and
        argmax are those of the whole vocabulary.
        """

        def compute(logits: Tensor, part: slice) -> LossOutput:
            with torch.no_grad():
                wanted = finite(target[index[part]]).log_softmax(-1)
            own = logits.log_softmax(-1)
            if draft_ids is not None:
                return self._restricted_loss(own, wanted, next_token[part], draft_ids)
            inputs = LossInputs.of(own, wanted, next_token[part])
            loss = self._sum(inputs)
            with torch.no_grad():
                greedy = (own.argmax(-1) == inputs.likeliest).float()
                return LossOutput(loss, inputs.acceptance, greedy)

        return LossOutput(*by_position(compute, draft, chunk=self.chunk))

    def _restricted_loss(self, draft: Tensor, target: Tensor, next_token: Tensor, draft_ids: Tensor) -> LossOutput:
        """Log-probabilities ``draft`` [N, K] of ``draft_ids`` against ``target`` [N, V]."""
        with torch.no_grad():
            inside, likeliest = target[:, draft_ids], target.argmax(-1)
            at = torch.searchsorted(draft_ids, next_token).clamp(max=len(draft_ids) - 1)
            at = torch.where(draft_ids[at] == next_token, at, OUTSIDE)
            learned = torch.isin(likeliest, draft_ids)
        loss = self._sum(LossInputs.of(draft, inside.log_softmax(-1), at))
        with torch.no_grad():
            acceptance = torch.minimum(draft, inside).exp().sum(-1)
            greedy = (draft_ids[draft.argmax(-1)] == likeliest).float()
        return LossOutput(torch.where(learned, loss, 0.0), acceptance, greedy)

    def _sum(self, inputs: LossInputs) -> Tensor:
        return torch.stack([weight * term(inputs) for term, weight in self.terms]).sum(0)


def cross_entropy(logits: Tensor, next_token: Tensor, *, chunk: int | None = None) -> Tensor:
    """Cross-entropy of ``next_token`` [N] under ``logits`` [N, V] in nats: [N]; in chunks as above."""

    def compute(rows: Tensor, part: slice) -> tuple[Tensor]:
        return (F.cross_entropy(rows, next_token[part], reduction="none"),)

    return by_position(compute, logits, chunk=chunk)[0]
