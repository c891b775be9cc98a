"""Requests that come from files: checked and answered as the server's routes do it, without HTTP."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from paceline.api.async_streams import DrainingError, OverloadedError
from paceline.api.params import SamplingParams
from paceline.api.results import Result
from paceline.serve.chats import ChatAnswer
from paceline.serve.completions import CompletionAnswer
from paceline.serve.errors import ApiError, api_error, body_of, invalid_body
from paceline.serve.generation import Answer, Server, check_model
from paceline.serve.response_body import ResponsesBody
from paceline.serve.responses import ResponseAnswer, response_params
from paceline.serve.sampling import chat_params, completion_params
from paceline.serve.schema import ChatBody, CompletionBody, GenerationBody
from paceline.serve.settings import Limits, Settings

CLIENT = "batch"  # whose outputs drafters may copy from: those of one file are of one client
Answered: TypeAlias = tuple[int, dict[str, object], Sequence[Result]]  # status, body, and the outputs that are in it


@dataclass(frozen=True, slots=True)
class Route:
    """What the requests of a route are. ``params`` raises ApiError."""

    body: type[GenerationBody | ResponsesBody]
    answer: Callable[[Server, Any, str], Answer]
    params: Callable[[Any, Limits], SamplingParams]


ROUTES = {
    "/v1/completions": Route(CompletionBody, CompletionAnswer, completion_params),
    "/v1/chat/completions": Route(ChatBody, ChatAnswer, chat_params),
    "/v1/responses": Route(ResponsesBody, ResponseAnswer, response_params),
}


def read_body(url: str, given: Mapping[str, Any], settings: Settings) -> GenerationBody | ResponsesBody:
    """The body of a request to ``url``, one of ROUTES. Raises ApiError for what the server refuses before it reads a
    prompt, and for a stream.
    """
    route = ROUTES[url]
    try:
        body = route.body.model_validate(given)
    except ValidationError as error:
        raise invalid_body(error.errors()) from error
    check_model(settings, body.model)
    if body.stream:
        raise ApiError(400, "stream=True: the answers of a batch are whole: leave it out", param="stream")
    route.params(body, settings.limits)
    return body


async def answer(server: Server, url: str, given: Mapping[str, Any]) -> Answered:
    """The answer to a request to ``url``, one of ROUTES: status, body and outputs; an error is an answer, too.

    Raises OverloadedError and DrainingError for a request that was not begun, and EngineError when the engine has
    ended: these say nothing about the request.
    """
    try:
        body = read_body(url, given, server.settings)
        made = ROUTES[url].answer(server, body, CLIENT)
        async with await made.submit() as stream:
            results = await stream.results()
        return 200, made.whole(results), results
    except (OverloadedError, DrainingError):
        raise
    except Exception as error:
        if not server.engine.alive:
            raise
        found = api_error(error)
        return found.status, body_of(found), ()
