"""Options of ``paceline inspect``."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from paceline.cli.options import (
    AT_LEAST_1,
    POSITIONAL,
    Backend,
    Device,
    DraftQuantization,
    Dtype,
    Json,
    Quantization,
    Revision,
    TrustRemoteCode,
    at_least,
)


@dataclass(frozen=True, slots=True)
class Inspect:
    """Show what a model is, which code runs it, what can draft for it, and the memory it needs.

    Reads only the config, the tokenizer and the headers of the weights, so large models take no longer.

    Examples:

        paceline inspect DIR
        paceline inspect DIR --draft SMALL_DIR --batch-size 16 --context 4096
        paceline inspect DIR --json
    """

    model: Annotated[str, POSITIONAL]
    """Directory or Hub id."""
    _: KW_ONLY
    draft: str | None = None
    """Check whether this model can draft for it."""
    batch_size: Annotated[int, AT_LEAST_1] = 8
    """Memory for this many sequences per batch."""
    context: int | None = None
    """Memory for sequences of this many tokens; the model's context, at most 2048, by default."""
    num_draft_tokens: Annotated[int | None, at_least(0)] = None
    """Tokens drafted per step; 5 by default."""
    dtype: Dtype = None
    quantization: Quantization = None
    draft_quantization: DraftQuantization = None
    device: Device = None
    backend: Backend = "auto"
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    json: Json = False
