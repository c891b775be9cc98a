"""Chooses a draft head for a target and a training budget, by a rule over measurements and stated prior figures.

Nothing here measures: the same measurements give the same choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.early_exit import EarlyExitHead
from paceline.draft_heads.feature_head import FeatureHead
from paceline.draft_heads.state_pair import StatePairHead
from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Work
from paceline.hardware.speed_limit import limit
from paceline.models.native.decoder import DecoderLM
from paceline.models.work import forward_work

# Greedy tokens per step by training steps, of drafts of PRIOR_K tokens: the zoo's validations of heads of the embedded
# target, with Muon, on its own output and Python source (docs/benchmarks/zoo-validation.jsonl). No other kind has
# such a curve yet.
PRIORS: Mapping[str, Sequence[tuple[int, float]]] = {
    "early_exit": (
        *((0, 1.0), (250, 2.41), (500, 2.89), (750, 2.88), (1000, 2.97), (1250, 3.17)),
        *((1500, 3.19), (1750, 3.30), (2000, 3.25), (2250, 3.36), (2451, 3.39)),
    ),
    "prophet": (
        *((0, 1.0), (250, 2.02), (500, 2.29), (750, 2.34), (1000, 2.55), (1250, 2.59)),
        *((1500, 2.65), (1750, 2.82), (2000, 2.95), (2241, 3.03)),
    ),
    "mtp": ((0, 1.0), (250, 2.55), (500, 2.94), (750, 3.01), (1000, 3.28), (1250, 3.30), (1500, 3.47)),
    "eagle3": (
        *((0, 1.0), (250, 2.01), (500, 2.19), (750, 2.32), (1000, 2.57), (1250, 2.75)),
        *((1500, 2.88), (1750, 3.03), (2000, 3.25), (2250, 3.21), (2319, 3.16)),
    ),
    "medusa": (
        *((0, 1.0), (250, 1.44), (500, 1.49), (750, 1.53), (1000, 1.57), (1250, 1.57)),
        *((1500, 1.65), (1750, 1.66), (2000, 1.64), (2189, 1.64)),
    ),
}
PRIOR_K = 6
PRIOR_TOKENS = 8 * 255  # of a step there
LONGEST = 8  # draft tokens that are considered
MOST_DRAFTED = 32_000  # tokens of a draft vocabulary, as EAGLE-3 has (2503.01840)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A head as a configuration names it."""

    kind: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a candidate was measured to take."""

    step: float  # seconds
    validation: float  # seconds
    num_parameters: int  # that are trained
    work: Work  # of one drafted token


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is to be expected of a candidate."""

    candidate: Candidate
    probe: Probe
    steps: int  # that the budget has room for
    tokens_per_step: float  # of drafts of PRIOR_K tokens, by the prior
    draft_cost: float  # seconds of a drafted token over those of the target's plain step, by the roofline
    num_draft_tokens: int  # the best of 1 to LONGEST
    speed_up: float  # over plain decoding, by the roofline, with so many


def candidates(target: DecoderLM) -> list[Candidate]:
    """The kinds with a prior, in its proportions; an early exit only where a layer is left after it."""
    layers, vocab = target.num_layers, min(MOST_DRAFTED, target.vocab_size // 2)
    half = target.config.hidden_size // 2 // target.config.head_dim * target.config.head_dim
    exit_layer = max(1, round(layers / 8))
    taps = sorted({max(1, round(layers * share)) for share in (0.25, 0.625, 1.0)})
    found: dict[str, dict[str, Any]] = {
        "early_exit": {"exit_layer": exit_layer, "num_blocks": 1},
        "prophet": {
            "num_states": 2,
            "num_blocks": 2,
            "width": max(target.config.head_dim, half),
            "anchors": 64,
            "depth": PRIOR_K,
        },
        "mtp": {"depth": 5, "anchors": 64},
        "eagle3": {"taps": taps, "draft_vocab_size": vocab, "depth": 5, "anchors": 64},
        "medusa": {"depth": PRIOR_K, "lm_head": "shared", "draft_vocab_size": vocab, "anchors": 128},
    }
    if exit_layer >= layers:
        del found["early_exit"]
    return [Candidate(kind=kind, config=config) for kind, config in found.items()]


def draft_work(head: DraftHead, target: DecoderLM) -> Work:
    """What drafts a token: a forward of the head's decoder, with the target's layers below an early exit and what joins
    a pair; of heads with layers for every depth, the mean over the depths.
    """
    work, whole = forward_work(head.decoder), forward_work(target)
    if isinstance(head, FeatureHead):
        lm_heads = [head.lm_head_of(depth) for depth in range(head.sizes.depth)]
        layers = [*set(head.products).difference(lm_heads), *lm_heads]
        parts = [part for layer in layers for part in layer.parameters()]
        return replace(
            work,
            weight_bytes=sum(part.nbytes for part in parts) // head.sizes.depth,
            num_weights=sum(part.numel() for part in parts) // head.sizes.depth,
            slot_bytes=0,
            slot_flops=0,
        )
    below = target.blocks[: head.options.exit_layer] if isinstance(head, EarlyExitHead) else []
    joining = head.products if isinstance(head, StatePairHead) else ()  # EAGLE-3's reads what is verified alone
    parts = [part for module in (*below, *joining) for part in module.parameters()]
    share = len(below) / target.num_layers
    return replace(
        work,
        weight_bytes=work.weight_bytes + sum(part.nbytes for part in parts),
        num_weights=work.num_weights + sum(part.numel() for part in parts),
        slot_bytes=work.slot_bytes + round(whole.slot_bytes * share),
        slot_flops=work.slot_flops + round(whole.slot_flops * share),
    )


def expected_length(kind: str, num_tokens: int) -> float:
    """The prior's tokens per step after training on ``num_tokens``: linear between its points, flat after the last."""
    curve = PRIORS[kind]
    at = num_tokens / PRIOR_TOKENS
    for (start, low), (end, high) in pairwise(curve):
        if at < end:
            return low + (high - low) * (at - start) / (end - start)
    return curve[-1][1]


def acceptance_rate(tokens_per_step: float, k: int) -> float:
    """The share a, the same at every position, for which drafts of ``k`` give 1 + a + ... + a^k tokens per step."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**at for at in range(k + 1)) < tokens_per_step else (low, middle)
    return low


def estimate(
    candidate: Candidate, probe: Probe, *, target: Work, rates: Rates, budget: float, every: int, tokens_per_step: int
) -> Estimate:
    """For ``budget`` seconds with a validation ``every`` so many steps, each of ``tokens_per_step`` tokens.

    Raises ValueError if not one step and a validation fit.
    """
    steps = int((budget - probe.validation) / (probe.step + probe.validation / every))
    if steps < 1:
        raise ValueError(
            f"--budget {budget:g} s: a step of {candidate.kind} takes {probe.step:.2f} s and a validation "
            f"{probe.validation:.2f} s; give more, or validate fewer prompts"
        )
    length = expected_length(candidate.kind, steps * tokens_per_step)
    rate = acceptance_rate(length, PRIOR_K)
    plain = limit(target, None, rates, acceptance=())
    found = [
        limit(target, probe.work, rates, acceptance=[rate**at for at in range(1, k + 1)]) for k in range(1, LONGEST + 1)
    ]
    best = max(found, key=lambda one: (one.speed_up(plain), -one.num_draft_tokens))
    alone = limit(probe.work, None, rates, acceptance=())
    return Estimate(
        candidate=candidate,
        probe=probe,
        steps=steps,
        tokens_per_step=length,
        draft_cost=alone.attainable / plain.attainable,
        num_draft_tokens=best.num_draft_tokens,
        speed_up=best.speed_up(plain),
    )


def choose(estimates: Sequence[Estimate]) -> Estimate:
    """The highest speed-up; of equals the one with fewer parameters, then the first by name."""
    return min(estimates, key=lambda one: (-one.speed_up, one.probe.num_parameters, one.candidate.kind))
