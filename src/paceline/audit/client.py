"""An HTTP client for the /models and /completions endpoints of OpenAI-compatible servers.

Redirects are not followed: they would send the key to another host.
"""

import json
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from threading import Thread
from typing import final

import httpx

MAX_MESSAGE = 300  # characters of a server's error message that are shown
EOS_FINISH_REASONS = ("stop", "eos", "eos_token")  # what servers report for an end-of-text token

# Extra request fields, tried in this order until the server accepts them. They turn the server's own filters off and
# ask for token ids.
NO_FILTERS = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
TOKEN_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
EXTRA_FIELDS: tuple[Mapping[str, object], ...] = (
    {"logprobs": 1, **NO_FILTERS, **TOKEN_IDS},
    {"logprobs": 1, **NO_FILTERS},
    {"logprobs": 1},
    {},
)
HINTS = {403: "the key may not do this", 429: "lower --batch-size, or wait"}


class ServerError(ValueError):
    """The server cannot be reached, refuses a request, or sends a response that cannot be read."""


class _StatusError(ServerError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One prompt to complete, at temperature 0 or 1 and without filters. The names are those of the request fields."""

    prompt: str
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A server's completion; None for what it does not report."""

    text: str
    stopped: bool  # by an end-of-text token, not by length
    token_ids: tuple[int, ...] | None = None
    tokens: tuple[str, ...] | None = None  # token strings of the logprobs
    logprobs: tuple[float | None, ...] | None = None
    num_prompt_tokens: int | None = None
    num_tokens: int | None = None


@final
class CompletionClient:
    """Requests completions from one server.

    ``url`` is the part before /completions, such as http://localhost:8000/v1. ``key`` is sent as a bearer token and
    never shown. ``timeout`` is in seconds without a response. Raises ValueError for an invalid URL, key or timeout.
    """

    def __init__(self, *, url: str, key: str | None = None, timeout: float = 120.0) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL()
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
            raise ValueError(f"--url {url}: give one like http://localhost:8000/v1")
        if parsed.userinfo:
            raise ValueError("--url with a user or password in it: give the key by --api-key-env instead")
        if not timeout > 0:
            raise ValueError(f"--timeout {timeout:g}: give seconds above 0")
        if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
            raise ValueError("the key contains spaces or characters that no HTTP header can hold: set it again")
        self.url, self._key = url.rstrip("/"), key
        self._level, self._accepted = 0, False  # index into EXTRA_FIELDS, and whether the server has accepted it
        self._http = httpx.Client(
            headers={"User-Agent": "paceline", **({} if key is None else {"Authorization": f"Bearer {key}"})},
            timeout=timeout,
            verify=ssl.create_default_context(),  # the system's certificates, not only httpx's own
            limits=httpx.Limits(max_keepalive_connections=0),  # requests come in bursts, minutes apart
        )

    @property
    def extra_fields(self) -> Mapping[str, object]:
        """The request fields beyond the basic ones that the server accepts, as far as is known."""
        return EXTRA_FIELDS[self._level]

    def find_model(self, name: str | None, *, candidates: Sequence[str]) -> str:
        """The served name of the model: ``name``, the first of ``candidates`` that the server lists, or its only model.

        Raises ServerError with the names that the server lists where none fits, or where it has no list.
        """
        try:
            response = self._send("GET", "/models")
        except _StatusError as error:
            if name is not None and error.status in (404, 405):
                return name
            if error.status != 404:
                raise
            raise ServerError(
                f"{error}; a list of models is at URL/models: does --url end as the server's does, often in /v1?"
            ) from error
        entries = response.get("data")
        ids = [entry.get("id") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        listed = [entry for entry in ids if isinstance(entry, str)]
        if name is not None:
            if listed and name not in listed:
                raise ServerError(f"--served-model {name}: {self.url} serves {_join(listed)}; give one of these")
            return name
        found = listed[0] if len(listed) == 1 else next((one for one in candidates if one in listed), None)
        if found is None:
            raise ServerError(f"{self.url} serves {_join(listed)}: say which by --served-model NAME")
        return found

    def complete_all(
        self, model: str, requests: Sequence[CompletionRequest], *, max_concurrency: int
    ) -> list[Completion]:
        """The completions of ``requests``, in order. The first request of all is sent alone, to find ``extra_fields``.

        Raises ServerError for the first request that fails; the others are not sent then.
        """
        first = [] if self._accepted else [self._negotiate(model, request) for request in requests[:1]]
        pending, done = deque(enumerate(requests[len(first) :])), SimpleQueue[tuple[int, Completion | Exception]]()
        completions: dict[int, Completion] = {}

        def work() -> None:
            while pending:
                try:
                    index, request = pending.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    done.put((index, self._complete(model, request)))
                except Exception as error:  # raised in the caller's thread
                    done.put((index, error))

        for _ in range(min(max_concurrency, len(pending))):
            Thread(target=work, daemon=True).start()  # an executor's threads would make Ctrl-C wait for the responses
        try:
            for _ in requests[len(first) :]:
                index, result = done.get()
                if isinstance(result, Exception):
                    raise result
                completions[index] = result
        finally:
            pending.clear()
        return [*first, *(completions[index] for index in sorted(completions))]

    def _negotiate(self, model: str, request: CompletionRequest) -> Completion:
        """A completion with the first of EXTRA_FIELDS that the server does not reject as invalid."""
        while True:
            try:
                completion = self._complete(model, request)
                self._accepted = True
                return completion
            except _StatusError as error:
                if error.status not in (400, 422) or self._level == len(EXTRA_FIELDS) - 1:
                    raise
                self._level += 1

    def _complete(self, model: str, request: CompletionRequest) -> Completion:
        body = {"model": model, **asdict(request), "top_p": 1.0, **self.extra_fields}
        return _parse(self._send("POST", "/completions", body), self.url)

    def _send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """The JSON object in the response. Raises ServerError where there is none."""
        url = f"{self.url}{path}"
        try:
            response = self._http.request(method, url, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(self._explain(url, error)) from None
        if not response.is_success:
            raise _StatusError(response.status_code, self._describe(url, response))
        content = _json(response)
        if not isinstance(content, dict):
            raise ServerError(f"{url} answers without a JSON object: is it an OpenAI-compatible server?")
        return content

    def _describe(self, url: str, response: httpx.Response) -> str:
        """The status and the server's own message, without the key."""
        message = " ".join(_error_message(response).split())
        if self._key is not None:
            message = message.replace(self._key, "***")
        hint = HINTS.get(response.status_code)
        if response.status_code == 401:
            hint = "give --api-key-env VAR, the variable that holds the key" if self._key is None else "check the key"
        if 300 <= response.status_code < 400:
            hint = f"it redirects to {response.headers.get('Location', 'another URL')}: give that as --url"
        message = f": {message[:MAX_MESSAGE]}" if message else ""
        return f"{url} answers {response.status_code}{message}{f' ({hint})' if hint else ''}"

    def _explain(self, url: str, error: Exception) -> str:
        if isinstance(error, httpx.TimeoutException):
            seconds = self._http.timeout.read
            return f"{url} gave no answer within {seconds:g} s: raise --timeout, or lower --batch-size"
        if isinstance(error, httpx.ConnectError) and "refused" in str(error):
            return f"nothing listens at {self.url} (connection refused): start the server, or correct --url"
        return f"{url} cannot be reached ({type(error).__name__}: {error}): correct --url, or check the server's log"


def _parse(response: Mapping[str, object], url: str) -> Completion:
    """The completion in a response. Raises ServerError where it has no text."""
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
        raise ServerError(f"{url}/completions answers without choices[0].text: is it an OpenAI-compatible server?")
    logprobs, usage = (one if isinstance(one, dict) else {} for one in (choice.get("logprobs"), response.get("usage")))
    values = _tuple_of(logprobs.get("token_logprobs"), int, float, type(None))
    return Completion(
        text=choice["text"],
        stopped=choice.get("finish_reason") in EOS_FINISH_REASONS,
        token_ids=_tuple_of(choice.get("token_ids"), int),
        tokens=_tuple_of(logprobs.get("tokens"), str),
        logprobs=None if values is None else tuple(None if value is None else float(value) for value in values),
        num_prompt_tokens=_int(usage.get("prompt_tokens")),
        num_tokens=_int(usage.get("completion_tokens")),
    )


def _tuple_of(value: object, *types: type) -> tuple | None:
    """``value`` if it is a list of items of ``types`` only; a bool is no int."""
    return tuple(value) if isinstance(value, list) and all(type(item) in types for item in value) else None


def _int(value: object) -> int | None:
    return value if type(value) is int else None


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None


def _error_message(response: httpx.Response) -> str:
    """The message in an error body, in the forms that servers use."""
    content = _json(response)
    if content is None:
        return response.text
    inner = content.get("error", content) if isinstance(content, dict) else content
    if isinstance(inner, dict):
        inner = inner.get("message", inner.get("detail", inner))
    return inner if isinstance(inner, str) else json.dumps(inner)


def _join(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "no model"
