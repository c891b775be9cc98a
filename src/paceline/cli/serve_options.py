"""The options of ``paceline serve``, by vLLM's names where it has them. Loads no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from paceline.cli.options import AT_LEAST_1, MODEL, POSITIONAL, ModelOptions, at_least, check_model, one_of

if TYPE_CHECKING:
    from paceline.serve.settings import Limits

NETWORK, LIMITS, ANSWERS = Group("Network", sort_key=3), Group("Limits", sort_key=4), Group("Answers", sort_key=5)
TOOL_CALL_PARSERS = ("hermes", "mistral", "llama3_json", "json")
REASONING_PARSERS = ("deepseek_r1", "qwen3", "mistral")
UVICORN_LEVELS = ("debug", "info", "warning", "error", "critical")


def positive(_: object, value: float | None) -> None:
    """Raise ValueError for a number of seconds that is none."""
    if value is not None and not 0 < value < float("inf"):
        raise ValueError(f"{value}: give a positive number of seconds")


def _check_port(_: object, value: int) -> None:
    if not 0 <= value <= 65535:
        raise ValueError(f"{value}: give 0 to 65535")


def _check_model(kind: object, value: str) -> None:
    if value:
        check_model(kind, value)


SECONDS = Parameter(validator=positive)


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, slots=True)
class ServedModelOptions(ModelOptions):
    """Which model is loaded, and how; without one the embedded pair is."""

    model: Annotated[str, POSITIONAL, Parameter(validator=_check_model, show_default=False)] = ""
    """Directory (config.json, safetensors, tokenizer.json) or Hub id (owner/name); the embedded pair by default."""


@Parameter(name="*", group=NETWORK)
@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Where the server listens, and who may ask it."""

    host: str = "127.0.0.1"
    """Address to listen at. One that other machines reach needs a key."""
    port: Annotated[int, Parameter(validator=_check_port)] = 8000
    """Port to listen at; 0 is any that is free."""
    api_key: tuple[str, ...] = ()
    """Key that clients must send; may be repeated. Everybody on this machine sees it: better --api-key-file."""
    api_key_file: Path | None = None
    """File with a key on each line. Without either option, PACELINE_API_KEY or VLLM_API_KEY."""
    allowed_origins: tuple[str, ...] = ()
    """Web page, such as https://example.com, whose scripts may ask this server; may be repeated. None by default."""
    root_path: str = ""
    """Path under which a proxy shows the server."""
    ssl_keyfile: Path | None = None
    """Key of the certificate, PEM."""
    ssl_certfile: Path | None = None
    """Certificate for HTTPS, PEM."""
    uvicorn_log_level: Annotated[str, one_of(UVICORN_LEVELS)] = "warning"
    """debug, info (a line per request), warning, error or critical."""
    drain_timeout: Annotated[float, SECONDS] = 30.0
    """Seconds that running requests have when the server ends."""


@Parameter(name="*", group=LIMITS)
@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """What requests may ask for at most."""

    max_body_bytes: Annotated[int, AT_LEAST_1] = 4 << 20
    """Size of a request."""
    max_prompts: Annotated[int, AT_LEAST_1] = 64
    """Prompts of a request."""
    max_n: Annotated[int, AT_LEAST_1] = 16
    """Outputs of a prompt."""
    max_outputs: Annotated[int, AT_LEAST_1] = 128
    """Outputs of a request, of all its prompts."""
    body_timeout: Annotated[float, SECONDS] = 60.0
    """Seconds until all of a request has come."""
    request_timeout: Annotated[float | None, SECONDS] = None
    """Seconds from a request's arrival to its last token; no limit by default."""
    max_waiting: Annotated[int, AT_LEAST_1] = 256
    """Requests that wait for a row; further ones are answered 429."""
    max_waiting_tokens: Annotated[int | None, AT_LEAST_1] = None
    """Their tokens, prompts and max_tokens; no limit by default."""

    def limits(self) -> "Limits":
        """Those of one request."""
        from paceline.serve.settings import Limits

        return Limits(
            body_bytes=self.max_body_bytes,
            prompts=self.max_prompts,
            samples=self.max_n,
            outputs=self.max_outputs,
            body_seconds=self.body_timeout,
            seconds=self.request_timeout,
        )


MaxModelLen = Annotated[
    int | None,
    Parameter(help="Most tokens of a request, prompt included; the model's context, at most 2048, by default."),
    at_least(2),
]


@Parameter(name="*", group=ANSWERS)
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How answers of chats are read."""

    tool_call_parser: Annotated[str | None, one_of(TOOL_CALL_PARSERS)] = None
    """How the model writes calls of tools; by default as its chat template tells."""
    enable_auto_tool_choice: bool = True
    """Let the model decide whether it calls a tool; without, requests have to say."""
    reasoning_parser: Annotated[str | None, one_of(REASONING_PARSERS)] = None
    """How the model writes reasoning; by default it is part of the text."""
