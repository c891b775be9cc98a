"""How much of a draft the target keeps, by the Decoder that serves it. Trains nothing.

P prompts, T tokens each.
"""

from dataclasses import dataclass

import numpy as np

from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.core.stats import Summary
from paceline.decode import Decoder
from paceline.drafters.base import Drafter
from paceline.models.base import LM
from paceline.text.loops import is_looping
from paceline.verifiers.coupled import Coupled


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Greedy acceptance over the texts that do not loop; looping ones flatter every drafter."""

    summary: Summary
    num_texts: int
    num_looping: int  # left out

    @property
    def by_position(self) -> list[float]:
        """Share of the steps drafting a position that kept it."""
        pairs = zip(self.summary.accepted, self.summary.drafted, strict=True)
        return [accepted / drafted if drafted else 0.0 for accepted, drafted in pairs]


def measure_acceptance(
    target: LM, drafter: Drafter, prompts: np.ndarray, *, num_tokens: int, num_draft_tokens: int
) -> Acceptance:
    """Continue ``prompts`` [P, T] greedily as one batch. Raises ValueError if every continuation loops."""
    decoder = Decoder(
        target=target,
        drafter=drafter,
        verifier=Coupled(),
        plan=Fixed(num_draft_tokens),
        rows=len(prompts),
        max_length=prompts.shape[1] + num_tokens,
    )
    decoder.admit([Request(tokens=prompt.tolist(), max_tokens=num_tokens) for prompt in prompts], range(len(prompts)))
    for _ in range(num_tokens):
        decoder.step()
        if not bool(decoder.batch.active.any()):
            break
    texts = decoder.batch.tokens[:, prompts.shape[1] : -1].cpu().numpy()
    sound = [row for row, text in enumerate(texts) if not is_looping(text.tolist())]
    if not sound:
        raise ValueError(f"all {len(prompts)} continuations loop; train the target further or take other prompts")
    return Acceptance(summary=decoder.stats.summary(sound), num_texts=len(sound), num_looping=len(prompts) - len(sound))
