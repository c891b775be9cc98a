"""How much of a draft the target keeps, by the Decoder that serves it. Trains nothing.

P prompts, T tokens each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Acceptance over the texts that do not loop; looping ones flatter every drafter."""

    texts: tuple[Summary, ...]  # of each text that does not loop
    summary: Summary
    num_looping: int  # left out

    @property
    def num_texts(self) -> int:
        return len(self.texts)

    @property
    def by_position(self) -> list[float]:
        """Share of the steps drafting a position that kept it."""
        return self.summary.per_position_acceptance

    @property
    def interval(self) -> tuple[float, float]:
        """Where 95 % of the mean acceptance lengths lie if as many texts are drawn from these again and again."""
        emitted, steps = np.array([(text.emitted, text.steps) for text in self.texts]).T
        drawn = np.random.default_rng(0).integers(len(emitted), size=(NUM_RESAMPLED, len(emitted)))
        low, high = np.percentile(emitted[drawn].sum(-1) / steps[drawn].sum(-1), INTERVAL)
        return float(low), float(high)


def measure_acceptance(
    target: LM, drafter: Drafter, prompts: np.ndarray, *, num_tokens: int, num_draft_tokens: int, sampling: Sampling
) -> Acceptance:
    """Continue ``prompts`` [P, T] as one batch, each with a seed of its own; see ``require_texts`` for the result.

    Raises ValueError for texts that the target cannot hold.
    """
    decoder = Decoder(
        target=target,
        drafter=drafter,
        verifier=Coupled(),
        plan=Fixed(num_draft_tokens),
        rows=len(prompts),
        max_length=prompts.shape[1] + num_tokens,
    )
    requests = [
        Request(tokens=prompt.tolist(), max_tokens=num_tokens, sampling=_own(sampling, index))
        for index, prompt in enumerate(prompts)
    ]
    decoder.admit(requests, range(len(prompts)))
    for _ in range(num_tokens):
        decoder.step()
        if not bool(decoder.batch.active.any()):
            break
    texts = decoder.batch.tokens[:, prompts.shape[1] : -1].cpu().numpy()
    sound = [row for row, text in enumerate(texts) if not is_looping(text.tolist())]
    kept = tuple(decoder.stats.summary([row]) for row in sound)
    whole = sum(kept, Summary.empty(num_draft_tokens))
    return Acceptance(texts=kept, summary=whole, num_looping=len(prompts) - len(sound))


def require_texts(found: Acceptance) -> Acceptance:
    """``found`` itself. Raises ValueError if every continuation loops."""
    if not found.texts:
        raise ValueError(f"all {found.num_looping} continuations loop; train the target further or take other prompts")
    return found


def _own(sampling: Sampling, index: int) -> Sampling:
    return Sampling(temperature=sampling.temperature, seed=split_seed(sampling.seed, index))


def greedy_and_warm(temperature: float, *, seed: int) -> Sequence[tuple[str, Sampling]]:
    """How acceptance is measured: greedily, and at ``temperature`` unless that is 0; each with a name."""
    warm = [(f"t{temperature:g}", Sampling(temperature=temperature, seed=seed))] if temperature > 0 else []
    return [("greedy", Sampling(seed=seed)), *warm]
