"""Generates training sequences with the target itself: acceptance depends on how well a draft predicts its output.

P prompts, T tokens each.
"""

from collections.abc import Sequence
from dataclasses import replace

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
    """Continue ``prompts`` [P, T] by ``num_tokens`` each; looping outputs are left out: [P', T + num_tokens] uint16.

    Prompt p is sampled as ``samplings[p % len]``, with its own seed. Raises ValueError if every output loops.
    """
    length = prompts.shape[1] + num_tokens
    decoder = Decoder(
        target=target, drafter=NoDrafter(), verifier=Coupled(), plan=Fixed(0), rows=rows, max_length=length
    )
    sequences: list[np.ndarray] = []
    for start in track(range(0, len(prompts), rows), description="regenerating", transient=True):
        requests: list[Request] = []
        for index, prompt in enumerate(prompts[start : start + rows], start):
            sampling = samplings[index % len(samplings)]
            seeded = replace(sampling, seed=split_seed(sampling.seed, index))
            requests.append(Request(tokens=prompt.tolist(), max_tokens=num_tokens, sampling=seeded))
        decoder.admit(requests, range(len(requests)))
        for _ in range(num_tokens):
            decoder.step()
        outputs = decoder.batch.tokens[: len(requests), :length].cpu().numpy().astype(np.uint16)
        sequences.extend(output for output in outputs if not is_looping(output[prompts.shape[1] :].tolist()))
    if not sequences:
        raise ValueError(f"all {len(prompts)} outputs loop; train the target further or sample at a temperature")
    return np.stack(sequences)
