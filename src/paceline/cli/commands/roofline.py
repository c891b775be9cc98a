"""Options of ``paceline roofline``."""

from dataclasses import dataclass
from typing import Annotated

from paceline.cli.options import AT_LEAST_1, Device, DraftQuantization, Dtype, Json, Quantization, Threads, at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Measure the speed limit of this machine for decoding, plain and with drafts.

    Times memory reads and matrix products, which takes some seconds. These and the sizes in a model's files give the
    minimum time of a step: no code with these weights is faster than `limit`. `attainable` uses matrix products as
    fast as they were measured with so few rows. The speed-up is that of drafting at this speed; drafting pays from
    that many tokens per step.

    Examples:

        paceline roofline
        paceline roofline --model DIR --draft SMALL_DIR --acceptance 0.6 --threads 1
        paceline roofline --model DIR --acceptance 0.5,0.3,0.2 --num-draft-tokens 3 --json
    """

    model: str | None = None
    """Directory or Hub id; without it only the machine is measured."""
    draft: str | None = None
    """Draft model; without it drafts are assumed to cost nothing."""
    num_draft_tokens: Annotated[int, AT_LEAST_1] = 5
    """Tokens drafted per step."""
    acceptance: str | None = None
    """Acceptance rate, or a list with one rate per position: 0.8,0.6,0.5. Without it every drafted token is assumed
    to be accepted."""
    batch_size: Annotated[int, AT_LEAST_1] = 1
    """Sequences per batch."""
    context: Annotated[int, at_least(0)] = 512
    """Cache slots that every sequence reads."""
    dtype: Dtype = None
    quantization: Quantization = None
    draft_quantization: DraftQuantization = None
    device: Device = None
    threads: Threads = None
    processor_time: bool = False
    """Measure CPU time of one thread instead of wall time, for a machine that runs other programs."""
    json: Json = False
