"""Decoders as the studies need them: the one place where they touch the engine's parts."""

from collections.abc import Sequence

import psutil
import torch

from paceline.core.batch import Batch
from paceline.core.noise import Noise
from paceline.core.ops import TensorOps
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.core.step import Finish
from paceline.decode import Decoder
from paceline.drafters.base import Drafter
from paceline.drafters.none import NoDrafter
from paceline.engine.runner import ops_for
from paceline.models.base import LM
from paceline.verifiers import VERIFIERS
from paceline.verifiers.base import Verifier


def make_decoder(
    target: LM,
    *,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    num_draft_tokens: int = 0,
    rows: int,
    max_length: int,
    eager: bool = False,
) -> Decoder:
    """A decoder of ``rows`` rows that drafts ``num_draft_tokens`` in every step; ``eager`` without the kernels."""
    return Decoder(
        target=target,
        drafter=drafter or NoDrafter(),
        verifier=verifier or VERIFIERS.find("coupled")(),
        plan=Fixed(num_draft_tokens),
        rows=rows,
        max_length=max_length,
        ops=TensorOps() if eager else ops_for(target.device),
    )


def noise_on(device: torch.device) -> Noise:
    """The noise of batches on a device."""
    return ops_for(device).noise


def start_rows(batch: Batch, requests: Sequence[Request]) -> None:
    """Put ``requests`` into the first rows, running, without reading their prompts."""
    batch.admit(range(len(requests)), requests)
    batch.activate(torch.arange(len(requests), device=batch.device))


def step(decoder: Decoder) -> bool:
    """One whole step, and what the host reads of it: whether any row goes on."""
    decoder.step()
    return Finish.RUNNING in decoder.results().finish


def sequences_of(decoder: Decoder) -> list[list[int]]:
    """What every row holds, prompts included."""
    batch = decoder.batch
    return [tokens[:length] for tokens, length in zip(batch.tokens.tolist(), batch.length.tolist(), strict=True)]


def longest(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of the longest prompt."""
    return max(map(len, prompts))


def resident() -> int:
    """Bytes of this process that are in memory."""
    return psutil.Process().memory_info().rss
