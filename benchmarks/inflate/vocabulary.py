"""More token ids for a trained model, none of which it ever chooses: the costs of a large vocabulary. Times nothing.

V old ids with rows w_1 .. w_V of the head, h [H] any vector that the head reads. A new id i gets the row

    r_i = sum_j a_ij w_j    with a_ij >= 0 and sum_j a_ij = 1,

a mean of NUM_MIXED old rows with random weights. Its logit is the same mean of old logits, r_i h = sum_j a_ij (w_j h),
and a mean is at most the largest of what it is taken of. So for every h, however it came about, no new id has a larger
logit than the best old one; all the rows in a mean would have to share the largest logit for it to be as large. Greedy
decoding never chooses a new id. A bias, a positive factor and a soft cap of the logits change nothing in that.

No other rows will do. Where r is no such mean, some plane separates it from all w_j, and across it is an h with which r
wins: a shrunken copy of an old row wins where all logits are negative. A constant channel of the residual stream is
another way, as it could lower the new logits at will; eps of the norms leaves room for one of the size sqrt(H eps),
which bfloat16 rounds away. In rounded arithmetic a margin is needed: the distance from the best logit to the mean of
NUM_MIXED random ones, which the tests find many times larger than rounding in a trained model's outputs.

At a temperature above 0 new ids do have a share: exp is convex, so that r_i's is at most the mean share of its rows,
and that is all. Every old row is mixed into as many new ones, so that all new shares together are at most about
(new ids) / V of the old ones. Sampled outputs are not those of the trained model: use such a model at temperature 0.

Embeddings of new ids are the same means of old embeddings; tied heads stay tied. Every row is dense and another one.
"""

from dataclasses import replace

import torch
from torch import Tensor

from paceline.models.loading import build
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.fused_weights import split_parts

NUM_MIXED = 16
LIGHTEST, HEAVIEST = 0.5, 1.5  # weights in a mean, before they are made to sum to 1
ROWS = ("embed.weight", "head.weight", "head.bias")


def widen_vocabulary(lm: DecoderLM, vocab_size: int, *, seed: int = 0) -> DecoderLM:
    """``lm`` with ``vocab_size`` token ids; old ids keep their logits, new ones never have the largest.

    A pair that drafts and verifies takes the same ``vocab_size`` for both. Raises ValueError unless it is larger than
    the model's own, and for a model of a single token id.
    """
    old = lm.config.vocab_size
    if vocab_size <= old:
        raise ValueError(f"vocab_size={vocab_size:,} is not above the model's own {old:,}; give more")
    if old < 2:
        raise ValueError(
            "a vocabulary of one token id: its only row is every mean of it; give a model with two at least"
        )
    generator = torch.Generator(device="cpu").manual_seed(seed)
    chosen, weights = _means(old, vocab_size - old, generator)
    state = split_parts(lm.config, lm.state_dict())
    for name in ROWS:
        if name in state:
            state[name] = torch.cat([state[name], _mix(state[name], chosen, weights)])
    return build(replace(lm.config, vocab_size=vocab_size), state, device=lm.device)


def _means(num_old: int, num_new: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Old ids [num_new, m] and their weights, which sum to 1; every old id comes equally often, give or take one."""
    num_mixed = min(NUM_MIXED, num_old)
    rounds = -(-num_new * num_mixed // num_old)
    ids = torch.cat([torch.randperm(num_old, generator=generator) for _ in range(rounds)])
    chosen = ids[: num_new * num_mixed].view(num_new, num_mixed)
    weights = torch.rand(chosen.shape, generator=generator, dtype=torch.float64)
    weights = LIGHTEST + (HEAVIEST - LIGHTEST) * weights
    return chosen, weights / weights.sum(-1, keepdim=True)


def _mix(rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The means of ``rows`` [V, ...], taken in float64, in the precision and on the device of ``rows``."""
    flat = rows.detach().double().cpu().flatten(1) if rows.dim() > 1 else rows.detach().double().cpu()[:, None]
    mixed = torch.nn.functional.embedding_bag(chosen, flat, per_sample_weights=weights, mode="sum")
    return mixed.view(-1, *rows.shape[1:]).to(rows)
