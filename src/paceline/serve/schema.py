"""The bodies of requests. Sampling options stand beside OpenAI's own fields, by the names of ``SamplingParams``."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from paceline.api.params import SamplingParams

IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "request_id")
OWN = (
    "logprobs",
    "prompt_logprobs",
    "detokenize",
    "logits_processors",
    "n",
    "negative_prompt",
)  # read otherwise, or not
SAMPLING = tuple(field.name for field in fields(SamplingParams) if field.name not in OWN)
Token: TypeAlias = Annotated[StrictInt, Field(ge=0)]


def _halves(given: Any) -> Iterator[str]:
    """The texts in ``given`` that no encoding of Unicode has."""
    left = [given]
    while left:
        one = left.pop()
        if isinstance(one, str):
            if not one.isascii() and any("\ud800" <= letter <= "\udfff" for letter in one):
                yield one
        elif isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list) and not (one and type(one[0]) is int and type(one[-1]) is int):
            left += one


class Body(BaseModel):
    """Fields that are not listed are kept, to be refused by name unless they are sampling options."""

    model_config = ConfigDict(extra="allow", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_whole_characters(cls, given: Any) -> Any:
        wrong = next(iter(_halves(given)), None)
        if wrong is not None:
            raise ValueError(f"{wrong[:40]!r} has half a surrogate pair: give text that UTF-8 can encode")
        return given

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, given: Any) -> Any:
        """A field that is null is as if it were left out: clients write all that they know."""
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class Closed(Body):
    """A body with the fields that are listed and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Closed):
    """What a stream has beside its tokens."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(Body):
    """The schema of an answer in JSON."""

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Body):
    """The form of an answer, as OpenAI names it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class GenerationBody(Body):
    """What requests for completions and for chats have in common."""

    model: StrictStr | None = None
    n: Annotated[StrictInt, Field(ge=1)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    priority: StrictInt = 0
    speculative_config: dict[str, Any] | None = None  # serve/drafting.py
    return_steps: bool = False
    best_of: StrictInt | None = None
    prompt_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    return_tokens_as_token_ids: bool = False
    return_token_ids: bool = False
    truncate_prompt_tokens: Annotated[StrictInt, Field(ge=-1)] | None = None


class CompletionBody(GenerationBody):
    """Of ``/v1/completions``."""

    prompt: StrictStr | list[Token] | list[StrictStr] | list[list[Token]]
    echo: bool = False
    add_special_tokens: bool = True
    suffix: StrictStr | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None


class Message(Body):
    """One message of a chat; a content of parts is of text alone."""

    role: StrictStr
    content: StrictStr | list[dict[str, Any]] | None = None


class ChatBody(GenerationBody):
    """Of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: StrictInt | None = None
    logprobs: bool = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    echo: bool = False
    add_special_tokens: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: StrictStr | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    reasoning_effort: StrictStr | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(Closed):
    """Of ``/tokenize``."""

    model: StrictStr | None = None
    prompt: StrictStr | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Closed):
    """Of ``/detokenize``."""

    model: StrictStr | None = None
    tokens: list[Token]
