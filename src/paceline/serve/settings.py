"""What a server is told at its start: names, keys, and the limits of a request."""

from dataclasses import dataclass, field

from paceline.serve.reasoning import REASONING_FORMATS
from paceline.serve.tool_formats import TOOL_FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for at most; the number of its tokens is the engine's."""

    body_bytes: int = 4 << 20
    body_seconds: float = 60.0  # until all of it has come
    prompts: int = 64
    samples: int = 16  # of a prompt (n)
    outputs: int = 128  # of a request: prompts times samples
    stop_strings: int = 16
    stop_characters: int = 256  # of one, and of a bad word
    token_ids: int = 4096  # of an option that is a list of them, or maps them
    sequences: int = 256  # of an option that is a list of words or of sequences
    sequence_tokens: int = 64  # of one of them
    grammar_bytes: int = 64 << 10
    grammar_seconds: float = 1.0  # to compile one
    tools: int = 128
    schema_depth: int = 32  # nested levels of a tool
    template_options: int = 16  # of chat_template_kwargs
    sound_seconds: float = 3600.0  # of a file to transcribe
    seconds: float | None = None  # from its arrival to its last token


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``names`` are those that a request may call the model by, the first of them what answers call it."""

    names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()  # a client has to send one of them; () lets everybody in
    limits: Limits = field(default_factory=Limits)
    return_steps: bool = False  # whether streams may have drafts and what was accepted; the same holds of them
    per_request_metrics: bool = False  # they tell what was accepted, and so something of the text
    stream_interval: int | None = None  # tokens of every event of a stream; None: as many as a step gives
    hosts: tuple[str, ...] = ()  # by which this machine may be called; () lets any name through
    allowed_origins: tuple[str, ...] = ()  # web pages whose scripts may ask
    tool_call_parser: str | None = None  # how the model writes calls of tools; None: as its chat template tells
    enable_auto_tool_choice: bool = True
    reasoning_parser: str | None = None  # how it writes reasoning; None: it is text

    def __post_init__(self) -> None:
        for option, known in (("tool_call_parser", TOOL_FORMATS), ("reasoning_parser", REASONING_FORMATS)):
            value = getattr(self, option)
            if value is not None and value not in known:
                raise ValueError(f"{option}={value!r}: give one of {', '.join(known)}, or None")
