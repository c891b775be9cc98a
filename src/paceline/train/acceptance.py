"""Measures the acceptance of a drafter by decoding with the Decoder that serves it.

P prompts, T tokens each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.core.noise import split_seed
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.stats import Summary
from paceline.decode import Decoder
from paceline.drafters.base import Drafter
from paceline.models.base import LM
from paceline.text.loops import is_looping
from paceline.verifiers.coupled import Coupled

NUM_RESAMPLED = 1000
INTERVAL = (2.5, 97.5)  # percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Acceptance over the outputs that do not loop; looping outputs are easy for every drafter."""

    outputs: tuple[Summary, ...]  # one per output that does not loop
    summary: Summary
    num_looping: int  # left out

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    @property
    def by_position(self) -> list[float]:
        """Acceptance rate of each draft position, over the steps that drafted it."""
        return self.summary.per_position_acceptance

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean acceptance length, by resampling the outputs."""
        emitted, steps = np.array([(output.emitted, output.steps) for output in self.outputs]).T
        resampled = np.random.default_rng(0).integers(len(emitted), size=(NUM_RESAMPLED, len(emitted)))
        low, high = np.percentile(emitted[resampled].sum(-1) / steps[resampled].sum(-1), INTERVAL)
        return float(low), float(high)


def measure_acceptance(
    target: LM, drafter: Drafter, prompts: np.ndarray, *, num_tokens: int, num_draft_tokens: int, sampling: Sampling
) -> Acceptance:
    """Continue ``prompts`` [P, T] by ``num_tokens`` each, as ``measure_requests`` does."""
    requests = requests_of(prompts, num_tokens)
    return measure_requests(target, drafter, requests, num_draft_tokens=num_draft_tokens, sampling=sampling)


def requests_of(prompts: np.ndarray, num_tokens: int) -> list[Request]:
    """Requests to continue ``prompts`` [P, T] by ``num_tokens`` each, whatever comes."""
    return [Request(tokens=prompt.tolist(), max_tokens=num_tokens) for prompt in prompts]


def measure_requests(
    target: LM, drafter: Drafter, requests: Sequence[Request], *, num_draft_tokens: int, sampling: Sampling
) -> Acceptance:
    """Decode ``requests`` as one batch, with ``sampling`` and each with its own seed.

    Raises ValueError for sequences longer than the target's context.
    """
    decoder = Decoder(
        target=target,
        drafter=drafter,
        verifier=Coupled(),
        plan=Fixed(num_draft_tokens),
        rows=len(requests),
        max_length=max(len(request.tokens) + request.max_tokens for request in requests),
    )
    seeds = (split_seed(sampling.seed, index) for index in range(len(requests)))
    own = [replace(request, sampling=replace(sampling, seed=next(seeds))) for request in requests]
    decoder.admit(own, range(len(requests)))
    for _ in range(max(request.max_tokens for request in requests)):
        decoder.step()
        if not bool(decoder.batch.active.any()):
            break
    lengths, tokens = decoder.batch.length.tolist(), decoder.batch.tokens.cpu().numpy()
    sound = [
        row
        for row, request in enumerate(requests)
        if not is_looping(tokens[row, len(request.tokens) : lengths[row]].tolist())
    ]
    summaries = tuple(decoder.stats.summary([row]) for row in sound)
    total = sum(summaries, Summary.empty(num_draft_tokens))
    return Acceptance(outputs=summaries, summary=total, num_looping=len(requests) - len(sound))


def require_outputs(acceptance: Acceptance) -> Acceptance:
    """``acceptance`` itself. Raises ValueError if every output loops."""
    if not acceptance.outputs:
        raise ValueError(f"all {acceptance.num_looping} outputs loop; train the target further or take other prompts")
    return acceptance


def validation_samplings(temperature: float, *, seed: int) -> Sequence[tuple[str, Sampling]]:
    """The samplings that a validation measures, by name: greedy, and ``temperature`` unless it is 0."""
    sampled = [(f"t{temperature:g}", Sampling(temperature=temperature, seed=seed))] if temperature > 0 else []
    return [("greedy", Sampling(seed=seed)), *sampled]
