"""Chooses a draft head for a target and a training budget, by a rule over measurements and stated prior figures.

Nothing here measures: the same measurements give the same choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from paceline.draft_heads.base import DraftHead
from paceline.hardware.rates import Rates
from paceline.hardware.roofline import Work
from paceline.hardware.speed_limit import limit
from paceline.models.native.decoder import DecoderLM
from paceline.models.work import forward_work

# Greedy tokens per step by training steps, of drafts of PRIOR_K tokens: what docs/training.md has of the heads of the
# embedded target (its own output and Python source, 16 rows of 255 tokens a step). No other kind has such a curve yet.
PRIORS: Mapping[str, Sequence[tuple[int, float]]] = {
    "early_exit": ((0, 1.0), (200, 2.26), (400, 2.62), (600, 2.95), (800, 2.92), (1000, 3.07), (1200, 3.12)),
    "prophet": ((0, 1.0), (200, 2.11), (400, 2.27), (600, 2.62), (800, 2.67), (1000, 2.74), (1200, 2.86)),
}
PRIOR_K = 5
PRIOR_TOKENS = 16 * 255  # of a step there
LONGEST = 8  # draft tokens that are considered


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
    """The kinds with a prior, in the proportions that it was measured with: 2 of 16 layers, half the width."""
    exit_layer = max(1, round(target.num_layers / 8))
    config = target.config
    found = [
        Candidate(
            kind="prophet",
            config={
                "num_states": 2,
                "num_blocks": 2,
                "width": max(config.head_dim, config.hidden_size // 2 // config.head_dim * config.head_dim),
                "anchors": 48,
                "depth": PRIOR_K,
            },
        )
    ]
    if exit_layer < target.num_layers:
        found.insert(0, Candidate(kind="early_exit", config={"exit_layer": exit_layer, "num_blocks": 1}))
    return found


def draft_work(head: DraftHead, target: DecoderLM, candidate: Candidate) -> Work:
    """One forward of what drafts a token: the head's decoder, and the target's layers below an early exit."""
    work = forward_work(head.decoder)
    below = target.blocks[: candidate.config.get("exit_layer", 0)]
    parameters = [parameter for block in below for parameter in block.parameters()]
    share = len(below) / target.num_layers
    whole = forward_work(target)
    return replace(
        work,
        weight_bytes=work.weight_bytes + sum(parameter.nbytes for parameter in parameters),
        num_weights=work.num_weights + sum(parameter.numel() for parameter in parameters),
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
