"""Chooses a draft head for a target and a training budget, by a rule over measurements and stated prior figures.

Nothing here measures: the same measurements give the same choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.models.draft_vocab import is_reducible
from paceline.models.native.decoder import DecoderLM

# Greedy tokens per step by training steps, of drafts of PRIOR_K tokens: the zoo's validations of heads of the embedded
# target, with Muon (EAGLE with AdamW), on its own output and Python source (docs/benchmarks/zoo-validation.jsonl; of
# Hydra, the wide prophet, DFlash 2 and xpress zoo-later-validation.jsonl).
PRIORS: Mapping[str, Sequence[tuple[int, float]]] = {
    "early_exit": (
        *((0, 1.0), (250, 2.41), (500, 2.89), (750, 2.88), (1000, 2.97), (1250, 3.17)),
        *((1500, 3.19), (1750, 3.30), (2000, 3.25), (2250, 3.36), (2451, 3.39)),
    ),
    "early_exit_quarter": (
        *((0, 1.0), (250, 2.73), (500, 3.13), (750, 3.10), (1000, 3.27), (1250, 3.30)),
        *((1500, 3.32), (1750, 3.48), (2000, 3.58), (2250, 3.56), (2500, 3.80), (2750, 3.68)),
        *((3000, 3.79), (3033, 3.74)),
    ),
    "prophet": (
        *((0, 1.0), (250, 2.02), (500, 2.29), (750, 2.34), (1000, 2.55), (1250, 2.59)),
        *((1500, 2.65), (1750, 2.82), (2000, 2.95), (2241, 3.03)),
    ),
    "prophet_wide": ((0, 1.0), (250, 2.19), (500, 2.56), (750, 2.73), (1000, 2.94), (1216, 3.02)),
    "mtp": ((0, 1.0), (250, 2.55), (500, 2.94), (750, 3.01), (1000, 3.28), (1250, 3.30), (1500, 3.47)),
    "eagle": (
        *((0, 1.0), (250, 1.96), (500, 2.42), (750, 2.61), (1000, 2.87), (1250, 3.08)),
        *((1500, 3.18), (1750, 3.34), (2000, 3.43), (2201, 3.52)),
    ),
    "eagle3": (
        *((0, 1.0), (250, 2.01), (500, 2.19), (750, 2.32), (1000, 2.57), (1250, 2.75)),
        *((1500, 2.88), (1750, 3.03), (2000, 3.25), (2250, 3.21), (2319, 3.16)),
    ),
    "dflash": ((0, 1.0), (250, 1.73), (500, 2.03), (750, 2.20), (860, 2.25)),
    "dspark": ((0, 1.0), (250, 2.14), (500, 2.49), (750, 2.78), (894, 2.92)),
    "dflash2": ((0, 1.0), (250, 2.19), (500, 2.52)),
    "xpress": ((0, 1.0), (250, 2.15), (500, 2.52)),
    "hydra": (
        *((0, 1.0), (250, 1.71), (500, 1.82), (750, 2.02), (1000, 2.28), (1250, 2.35)),
        *((1500, 2.42), (1584, 2.46)),
    ),
    "medusa": (
        *((0, 1.0), (250, 1.44), (500, 1.49), (750, 1.53), (1000, 1.57), (1250, 1.57)),
        *((1500, 1.65), (1750, 1.66), (2000, 1.64), (2189, 1.64)),
    ),
    "mlp_speculator": (
        *((0, 1.0), (250, 2.07), (500, 2.42), (750, 2.33), (1000, 2.49), (1250, 2.45)),
        *((1500, 2.61), (1750, 2.77), (2000, 2.84), (2250, 2.76), (2459, 2.82)),
    ),
}
PRIOR_K = 6
PRIOR_TOKENS = 8 * 255  # of a step there
MOST_DRAFTED = 32_000  # tokens of a draft vocabulary, as EAGLE-3 has (2503.01840)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A head as a configuration names it."""

    name: str  # in PRIORS, and in the zoo
    kind: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a candidate was measured to take."""

    step: float  # seconds
    validation: float  # seconds
    num_parameters: int  # that are trained
    costs: Sequence[float]  # of steps with 1, 2, ... draft tokens, over a plain step


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is to be expected of a candidate."""

    candidate: Candidate
    probe: Probe
    steps: int  # that the budget has room for
    tokens_per_step: float  # of drafts of PRIOR_K tokens, by the prior
    num_draft_tokens: int  # the best of those with a cost
    speed_up: float  # over plain decoding, with so many


def candidates(target: DecoderLM, *, optimiser: str) -> list[Candidate]:
    """The heads with a prior, in its proportions, that ``optimiser`` (a kind) can train; early exits only where a layer
    is left after them.
    """
    config, layers = target.config, target.num_layers
    half = config.hidden_size // 2 // config.head_dim * config.head_dim
    eighth, quarter = (max(1, round(layers / part)) for part in (8, 4))
    taps = sorted({max(1, round(layers * share)) for share in (0.25, 0.625, 1.0)})
    vocab = min(MOST_DRAFTED, target.vocab_size // 2)
    reduced = {"draft_vocab_size": vocab} if is_reducible(target) else {}
    width = max(config.head_dim, half)
    block = {"taps": taps, "num_layers": 2, "mask_token_id": 0, "anchors": 64}
    markov = {"ffn_size": config.ffn_size * 3 // 4, "markov_rank": config.hidden_size // 8}
    narrow = {**markov, "ffn_size": config.ffn_size * 9 // 16, "candidates": 64, "conv_taps": 2}
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "early_exit": ("early_exit", {"exit_layer": eighth, "num_blocks": 1}),
        "early_exit_quarter": ("early_exit", {"exit_layer": quarter, "num_blocks": 1}),
        "prophet": ("prophet", {"num_states": 2, "num_blocks": 2, "width": width, "depth": PRIOR_K, "anchors": 64}),
        "prophet_wide": ("prophet", {"num_states": 2, "num_blocks": 2, "depth": PRIOR_K, "anchors": 64}),
        "mtp": ("mtp", {"depth": 5, **reduced, "anchors": 64}),
        "eagle": ("eagle", {"depth": 5, **reduced, "anchors": 64}),
        "eagle3": ("eagle3", {"taps": taps, "draft_vocab_size": vocab, "depth": 5, "anchors": 64}),
        "dflash": ("block", {**block, "block_size": 8}),
        "dspark": ("block", {**block, **markov, "block_size": 7, "anchor_first": True, "confidence": True}),
        "dflash2": ("block", {**block, **narrow, "block_size": 8, "markov_head": "bilinear"}),
        "xpress": ("block", {**block, **markov, "block_size": 8, "markov_head": "refiner"}),
        "hydra": ("hydra", {"depth": PRIOR_K, "draft_vocab_size": vocab // 2, "anchors": 128}),
        "medusa": ("medusa", {"depth": PRIOR_K, "lm_head": "shared", "draft_vocab_size": vocab, "anchors": 128}),
        "mlp_speculator": (
            "mlp_speculator",
            {"depth": PRIOR_K, "tied": True, "draft_vocab_size": vocab, "anchors": 128},
        ),
    }
    if optimiser == "muon":  # its prior is of AdamW; it has no norms, and at the zoo's rate Muon broke it
        del found["eagle"]
    if eighth >= layers:
        del found["early_exit"]
    if quarter in (eighth, layers):
        del found["early_exit_quarter"]
    return [Candidate(name=name, kind=kind, config=config) for name, (kind, config) in found.items() if name in PRIORS]


def expected_length(name: str, num_tokens: int) -> float:
    """The prior's tokens per step after training on ``num_tokens``: linear between its points, flat after the last."""
    curve = PRIORS[name]
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


def estimate(candidate: Candidate, probe: Probe, *, budget: float, every: int, tokens_per_step: int) -> Estimate:
    """For ``budget`` seconds with a validation ``every`` so many steps, each of ``tokens_per_step`` tokens.

    Raises ValueError if not one step and a validation fit.
    """
    steps = int((budget - probe.validation) / (probe.step + probe.validation / every))
    if steps < 1:
        raise ValueError(
            f"--budget {budget:g} s: a step of {candidate.name} takes {probe.step:.2f} s and a validation "
            f"{probe.validation:.2f} s; give more, or validate fewer prompts"
        )
    length = expected_length(candidate.name, steps * tokens_per_step)
    rate = acceptance_rate(length, PRIOR_K)
    speed_ups = [sum(rate**at for at in range(k + 1)) / cost for k, cost in enumerate(probe.costs, 1)]
    best = max(range(len(speed_ups)), key=speed_ups.__getitem__)  # of equals the shortest
    return Estimate(
        candidate=candidate,
        probe=probe,
        steps=steps,
        tokens_per_step=length,
        num_draft_tokens=best + 1,
        speed_up=speed_ups[best],
    )


def choose(estimates: Sequence[Estimate]) -> Estimate:
    """The highest speed-up; of equals the one with fewer parameters, then the first by name."""
    return min(estimates, key=lambda one: (-one.speed_up, one.probe.num_parameters, one.candidate.name))
