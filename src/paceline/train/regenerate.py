"""Text by the target itself, on which acceptance depends. Decodes through the Decoder; trains nothing.

P prompts, T tokens each.
"""

from collections.abc import Sequence

import numpy as np
from rich.progress import track

from paceline.core.noise import split_seed
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.decode import Decoder
from paceline.drafters.none import NoDrafter
from paceline.models.base import LM
from paceline.text.loops import is_looping
from paceline.verifiers.coupled import Coupled


def regenerate(
    target: LM, prompts: np.ndarray, samplings: Sequence[Sampling], *, num_tokens: int, rows: int
) -> np.ndarray:
    """Continue ``prompts`` [P, T] by ``num_tokens`` each, looping texts left out: [P', T + num_tokens] uint16.

    Prompt p samples as ``samplings[p % len]`` says, under a seed of its own. Raises ValueError if every text loops.
    """
    length = prompts.shape[1] + num_tokens
    decoder = Decoder(
        target=target, drafter=NoDrafter(), verifier=Coupled(), plan=Fixed(0), rows=rows, max_length=length
    )
    kept: list[np.ndarray] = []
    for start in track(range(0, len(prompts), rows), description="regenerating", transient=True):
        wave = range(start, min(start + rows, len(prompts)))
        requests = [
            Request(tokens=prompts[p].tolist(), max_tokens=num_tokens, sampling=_own(samplings[p % len(samplings)], p))
            for p in wave
        ]
        decoder.admit(requests, range(len(wave)))
        for _ in range(num_tokens):
            decoder.step()
        texts = decoder.batch.tokens[: len(wave), :length].cpu().numpy().astype(np.uint16)
        kept.extend(text for text in texts if not is_looping(text[prompts.shape[1] :].tolist()))
    if not kept:
        raise ValueError(f"all {len(prompts)} continuations loop; train the target further or sample at a temperature")
    return np.stack(kept)


def _own(sampling: Sampling, index: int) -> Sampling:
    return Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=split_seed(sampling.seed, index),
    )
