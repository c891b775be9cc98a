"""Options of ``paceline audit``."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.cli.options import DraftOptions, Json, ModelOptions

SERVER = Group("Server", sort_key=3)


@Parameter(name="*", group=SERVER)
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which server is audited; with ``url`` None, none is."""

    url: str | None = None
    """Audit this OpenAI-compatible server instead, with MODEL as reference: http://localhost:8000/v1."""
    served_model: str | None = None
    """The model's name on the server; looked up in its list by default."""
    api_key_env: Annotated[str | None, Parameter(metavar="VAR")] = None
    """Environment variable with the server's API key."""
    timeout: float = 120.0
    """Seconds to wait for a response."""
    near_tie: float = 0.5
    """Greedy outputs may diverge where the model prefers its own token by at most this many nats."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Verify that drafting is lossless with this model: equal tokens, the target's distribution, expected acceptance.

    Greedy and sampled outputs are compared with plain decoding. Sampled tokens are tested against the target's
    distributions, computed by plain forwards; a bias of 2 % in total variation is detected in 20,000 tokens. With a
    draft model, the acceptance rate is compared with its closed form. Takes minutes.

    With `--url`, the outputs are a server's, whatever decodes there: are they MODEL's, with MODEL's distribution?

    Examples:

        paceline audit DIR --draft SMALL_DIR
        paceline audit DIR --drafter ngram --verifier rejection --num-tokens 5000 --json
        paceline audit DIR --url http://localhost:8000/v1 --batch 32
    """

    model: ModelOptions
    _: KW_ONLY
    drafting: DraftOptions = field(default_factory=DraftOptions)
    server: ServerOptions = field(default_factory=ServerOptions)
    num_tokens: int = 20_000
    """Sampled tokens to test."""
    text_length: int = 128
    """Tokens of each output."""
    batch_size: Annotated[int, Parameter(alias="--batch")] = 8
    """Sequences per batch, or concurrent requests."""
    seed: int = 0
    """Seed of the sampled outputs."""
    json: Json = False
