"""Warps processed logits into the distribution that a row samples from: temperature, then filters.

R rows, B rows of a call, n nodes, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from paceline.core.columns import Columns

LARGEST_DIGIT = 11  # bits decided at once when a boundary is looked for
COLUMNS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "order", "seed")


class FilterOrder(IntEnum):
    """Where min-p is applied among the filters: it drops the same tokens, but changes what top-p then keeps."""

    TRANSFORMERS = 0  # top-k, top-p, min-p
    VLLM = 1  # min-p, top-k, top-p


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One row's sampling options; the defaults are greedy decoding.

    - ``temperature``: 0 is argmax, else logits are divided by it.
    - ``top_k``: keep the k likeliest, 0 keeps all.
    - ``top_p``: keep the smallest set of likeliest tokens whose mass reaches it.
    - ``min_p``: drop tokens below this share of the likeliest one's probability.
    - ``typical_p``: keep the smallest set of tokens whose surprise is nearest to the expected one and whose mass
      reaches it; 1 is off (2202.00666).
    - ``epsilon_cutoff``: drop tokens of a smaller probability; ``eta_cutoff``: of one below the smaller of it and
      sqrt(it) exp(-entropy); 0 is off, and the likeliest token stays (2210.15191).
    - ``order``: filters apply in the order of transformers or of vLLM, and in both those that vLLM lacks come last.
    - ``seed``: 0 <= seed < 2**63, of the row's own noise.

    Raises ValueError on values outside these ranges.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    order: FilterOrder = FilterOrder.TRANSFORMERS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature}: give a finite number of at least 0 (0 is greedy)")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: give 0 (off) or a positive count")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: give a number above 0 and at most 1 (1 is off)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p}: give a number from 0 (off) to 1")
        if not 0 < self.typical_p <= 1:
            raise ValueError(f"typical_p={self.typical_p}: give a number above 0 and at most 1 (1 is off)")
        for name in ("epsilon_cutoff", "eta_cutoff"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a number from 0 (off) to below 1")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed={self.seed}: give an integer from 0 to 2**63 - 1")


class SamplingState:
    """The options of all rows as tensors, with flags on the host for the filters that any row uses."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows: list[Sampling] = [Sampling()] * rows
        self.temperature = torch.zeros(rows, dtype=torch.float64, device=device)
        self.top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        self.top_p = torch.ones(rows, dtype=torch.float64, device=device)
        self.min_p = torch.zeros(rows, dtype=torch.float64, device=device)
        self.typical_p = torch.ones(rows, dtype=torch.float64, device=device)
        self.epsilon_cutoff = torch.zeros(rows, dtype=torch.float64, device=device)
        self.eta_cutoff = torch.zeros(rows, dtype=torch.float64, device=device)
        self.order = torch.zeros(rows, dtype=torch.int64, device=device)
        self.seed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.columns = Columns(*(getattr(self, name) for name in COLUMNS))
        self._flag()

    def assign(self, rows: Sequence[int], options: Sequence[Sampling]) -> None:
        """Give rows their options."""
        for row, option in zip(rows, options, strict=True):
            self.rows[row] = option
        index = torch.tensor(list(rows), device=self.seed.device)
        for name in COLUMNS:
            column: Tensor = getattr(self, name)
            values = [getattr(option, name) for option in options]
            column[index] = torch.tensor(values, dtype=column.dtype, device=column.device)
        self._flag()

    def _flag(self) -> None:
        sampled = [option for option in self.rows if option.temperature > 0]
        self.any_sampled = bool(sampled)
        self.any_greedy = len(sampled) < len(self.rows)
        self.any_top_k = any(option.top_k > 0 for option in sampled)
        self.any_top_p = any(option.top_p < 1 for option in sampled)
        floored = [option.order for option in sampled if option.min_p > 0]
        self.any_min_p = bool(floored)
        self.any_min_p_first = FilterOrder.VLLM in floored
        self.any_typical_p = any(option.typical_p < 1 for option in sampled)
        self.any_cutoff = any(option.epsilon_cutoff > 0 or option.eta_cutoff > 0 for option in sampled)

    @property
    def flags(self) -> tuple[bool, ...]:
        """The host flags that warping branches on."""
        common = (self.any_sampled, self.any_greedy, self.any_top_k, self.any_top_p, self.any_min_p)
        return (*common, self.any_min_p_first, self.any_typical_p, self.any_cutoff)

    def warp(self, logits: Tensor) -> Tensor:
        """``logits`` [R, n, V] to scores whose exponentials are the distribution up to a factor: -inf where excluded.

        A greedy row's distribution is one-hot at its argmax, so whatever draws from the scores draws the argmax.
        """
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        dtype = scores.dtype
        temperature = self.temperature[:, None, None].to(dtype)
        if not self.any_sampled:
            return self._one_hot(scores)
        warped = scores / torch.where(temperature > 0, temperature, 1.0)
        if self.any_min_p_first:
            warped = self._floored(warped, self.order == int(FilterOrder.VLLM))
        if self.any_top_k:
            size = torch.where(self.top_k > 0, self.top_k, scores.shape[-1]).clamp(max=scores.shape[-1])
            warped = keep_until(warped, torch.ones_like(warped), size[:, None, None].to(dtype))
        if self.any_top_p:
            goal = torch.where(self.top_p < 1, self.top_p, torch.inf)
            warped = keep_until(warped, warped.softmax(-1), goal[:, None, None].to(dtype))
        if self.any_min_p:
            warped = self._floored(warped, self.order == int(FilterOrder.TRANSFORMERS))
        if self.any_typical_p:
            warped = self._typical(warped)
        if self.any_cutoff:
            warped = self._cut_off(warped, self.epsilon_cutoff, bounded_by_entropy=False)
            warped = self._cut_off(warped, self.eta_cutoff, bounded_by_entropy=True)
        return torch.where(temperature > 0, warped, self._one_hot(scores)) if self.any_greedy else warped

    def _floored(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Scores without the tokens that min-p drops in ``rows`` [R]."""
        floor = scores.amax(-1, keepdim=True) + self.min_p[:, None, None].to(scores.dtype).log()
        return scores.masked_fill((scores < floor) & rows[:, None, None], -torch.inf)

    def _typical(self, scores: Tensor) -> Tensor:
        probs = scores.log_softmax(-1)
        weight = probs.exp()
        entropy = -torch.where(weight > 0, probs * weight, 0.0).sum(-1, keepdim=True)
        goal = torch.where(self.typical_p < 1, self.typical_p, torch.inf)[:, None, None].to(scores.dtype)
        nearest = keep_until(-(probs + entropy).abs(), weight, goal)
        return torch.where(nearest > -torch.inf, scores, -torch.inf)

    @staticmethod
    def _cut_off(scores: Tensor, least: Tensor, *, bounded_by_entropy: bool) -> Tensor:
        """Scores without tokens of a probability below ``least`` [R]; the likeliest token stays."""
        probs = scores.softmax(-1)
        bound = least[:, None, None].to(scores.dtype)
        if bounded_by_entropy:
            bound = torch.minimum(bound, bound.sqrt() * torch.exp(torch.xlogy(probs, probs).sum(-1, keepdim=True)))
        dropped = (probs < bound) & (scores < scores.amax(-1, keepdim=True))
        return scores.masked_fill(dropped, -torch.inf)

    @staticmethod
    def _one_hot(scores: Tensor) -> Tensor:
        """Scores of the one-hot distribution at the argmax."""
        return torch.full_like(scores, -torch.inf).scatter_(-1, scores.argmax(-1, keepdim=True), 0.0)


def keep_until(scores: Tensor, weight: Tensor, goal: Tensor) -> Tensor:
    """Keep the largest ``scores`` [..., V] until their summed ``weight`` reaches ``goal`` [..., 1]; the rest -inf.

    Ties at the boundary are all kept; a goal beyond the whole weight keeps everything. The boundary is found digit by
    digit in the order-preserving integers of the floats, by histograms of weight: no sort, no transfer to the host.
    """
    wide = scores.dtype == torch.float64
    bits = (scores + 0.0).view(torch.int64 if wide else torch.int32)  # both zeros are one number
    lowest = torch.iinfo(bits.dtype).min
    # More negative floats have larger magnitudes; the sign bit is flipped so that digits order as unsigned numbers.
    order = (torch.where(bits < 0, lowest - bits - 1, bits) ^ lowest).long()
    width = 64 if wide else 32
    size = max(4, min(LARGEST_DIGIT, scores.shape[-1].bit_length()))  # a histogram no longer than the vocabulary
    kept = torch.zeros_like(scores, dtype=torch.bool)
    undecided = ~kept
    for shift in range(size * ((width - 1) // size), -1, -size):
        digit = (order >> shift) & ((1 << min(size, width - shift)) - 1)
        histogram = torch.zeros(*scores.shape[:-1], 1 << size, dtype=scores.dtype, device=scores.device)
        histogram.scatter_add_(-1, digit, torch.where(undecided, weight, 0.0))
        reach = histogram.flip(-1).cumsum(-1).flip(-1)  # weight of this digit and larger ones
        found = ((reach >= goal).sum(-1, keepdim=True) - 1).clamp(min=0)
        goal = goal - torch.nn.functional.pad(reach, (0, 1)).gather(-1, found + 1)
        kept = kept | (undecided & (digit > found))
        undecided = undecided & (digit == found)
    return scores.masked_fill(~(kept | undecided), -torch.inf)
