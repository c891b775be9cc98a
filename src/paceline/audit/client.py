"""A client of OpenAI-compatible servers: their models, and completions of texts. Knows nothing of what is asked for.

The standard library's HTTP. Redirects are not followed: they would carry the key to another place.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import final
from urllib.parse import urlsplit

LARGEST = 64 * 2**20  # bytes of an answer
SHOWN = 300  # characters of a server's message
ENDED = ("stop", "eos", "eos_token")  # what servers call a text that ended by itself

# What is asked beside the plain words of the interface, tried in this order until a server takes it. Filters that a
# server has of its own are switched off where it lets them be, and tokens asked for by their numbers.
OPEN = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
NUMBERED = {"return_token_ids": True, "return_tokens_as_token_ids": True}
RUNGS: tuple[Mapping[str, object], ...] = (
    {"logprobs": 1, **OPEN, **NUMBERED},
    {"logprobs": 1, **OPEN},
    {"logprobs": 1},
    {},
)


class ServerError(ValueError):
    """A server that cannot be reached, refuses, or answers what cannot be read; with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One text to be continued; temperature 0 or 1, without filters."""

    prompt: str
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What came back; None for what the server does not say."""

    text: str
    stopped: bool  # by an end-of-text token, not by length
    token_ids: tuple[int, ...] | None
    tokens: tuple[str, ...] | None  # as its logprobs spell them
    logprobs: tuple[float | None, ...] | None  # of these
    num_prompt_tokens: int | None
    num_tokens: int | None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


@final
class Server:
    """Completions of one model by one server.

    ``url`` is what comes before /completions, such as http://localhost:8000/v1; ``key`` is sent as a bearer token and
    shown nowhere; ``timeout`` counts seconds without an answer. Raises ValueError for what is no such URL, key or time.
    """

    def __init__(self, *, url: str, key: str | None = None, timeout: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"--url {url}: give one like http://localhost:8000/v1")
        if parts.username is not None or parts.password is not None:
            raise ValueError("--url with a user or password in it: give the key by --api-key-env instead")
        if not timeout > 0:
            raise ValueError(f"--timeout {timeout:g}: give seconds above 0")
        if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
            raise ValueError("the key holds spaces or characters that no header can: set the variable anew")
        self.url, self.timeout, self._key = url.rstrip("/"), timeout, key
        self._rung, self._settled = 0, False
        self._opener = urllib.request.build_opener(_NoRedirects)

    @property
    def asked(self) -> Mapping[str, object]:
        """What is asked beside the plain words, as far as the server has taken it."""
        return RUNGS[self._rung]

    def find_model(self, name: str | None, *, others: Sequence[str]) -> str:
        """The name that the server knows the model by: ``name``; or the first of ``others`` that it lists; or its only.

        Raises ServerError naming what it lists where that does not say, or where it has no list.
        """
        try:
            found = self._send("/models", None)
        except _Refused as refusal:
            if name is not None and refusal.status in (404, 405):
                return name
            raise ServerError(
                f"{refusal}; a list of models is at URL/models: does --url end as the server's does, often in /v1?"
                if refusal.status == 404
                else str(refusal)
            ) from refusal
        entries = found.get("data")
        names = [entry.get("id") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        listed = [entry for entry in names if isinstance(entry, str)]
        if name is not None:
            if listed and name not in listed:
                raise ServerError(f"--served-model {name}: {self.url} serves {_list(listed)}; give one of these")
            return name
        if len(listed) == 1:
            return listed[0]
        chosen = next((other for other in others if other in listed), None)
        if chosen is None:
            raise ServerError(f"{self.url} serves {_list(listed)}: say which by --served-model NAME")
        return chosen

    def complete_all(self, model: str, asks: Sequence[Ask], *, at_once: int) -> list[Completion]:
        """The completions of ``asks``, in their order, ``at_once`` at a time.

        The first of all is alone, to find what the server lets be asked. Raises ServerError for the first that fails.
        """
        found = [] if self._settled else [self._settle(model, ask) for ask in asks[:1]]
        waiting, answers = deque(enumerate(asks[len(found) :])), SimpleQueue[tuple[int, Completion | Exception]]()
        rest: list[Completion | None] = [None] * len(waiting)

        def work() -> None:
            while waiting:
                try:
                    at, ask = waiting.popleft()
                except IndexError:  # another was quicker
                    return
                try:
                    answers.put((at, self._complete(model, ask)))
                except Exception as error:  # raised below, where the caller is
                    answers.put((at, error))

        for _ in range(min(at_once, len(waiting))):
            Thread(target=work, daemon=True).start()  # a pool's threads would keep Ctrl-C waiting for their answers
        try:
            for _ in rest:
                at, answer = answers.get()
                if isinstance(answer, Exception):
                    raise answer
                rest[at] = answer
        finally:
            waiting.clear()
        return [*found, *(answer for answer in rest if answer is not None)]

    def _settle(self, model: str, ask: Ask) -> Completion:
        """Of the first rung that the server does not refuse as badly worded."""
        while True:
            try:
                found = self._complete(model, ask)
                self._settled = True
                return found
            except _Refused as refusal:
                if refusal.status not in (400, 422) or self._rung == len(RUNGS) - 1:
                    raise
                self._rung += 1

    def _complete(self, model: str, ask: Ask) -> Completion:
        body = {
            "model": model,
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": 1.0,
            "seed": ask.seed,
            **self.asked,
        }
        return _read(self._send("/completions", body), self.url)

    def _send(self, path: str, body: Mapping[str, object] | None) -> dict[str, object]:
        """The JSON object that answers. Raises ServerError for everything else."""
        headers = {"Accept": "application/json", "User-Agent": "paceline"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        where = f"{self.url}{path}"
        try:
            request = urllib.request.Request(where, data=data, headers=headers)
            with self._opener.open(request, timeout=self.timeout) as answer:
                raw = answer.read(LARGEST + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise _Refused(error.code, self._describe(where, error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(self._explain(where, error)) from None
        try:
            found = json.loads(raw[:LARGEST])
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServerError(f"{where} answers with no JSON object: is it an OpenAI-compatible server?")
        return found

    def _describe(self, where: str, error: urllib.error.HTTPError) -> str:
        """A refusal in words: the server's own message, without the key."""
        try:
            raw = error.read(LARGEST).decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException):
            raw = ""
        said = " ".join(_message(raw).split())
        if self._key is not None:
            said = said.replace(self._key, "***")
        said = f": {said[:SHOWN]}" if said else ""
        hint = {
            401: "give --api-key-env VAR, the variable that holds the key" if self._key is None else "check the key",
            403: "the key may not do this",
            429: "lower --batch-size, or wait",
        }.get(error.code)
        if 300 <= error.code < 400:
            hint = f"it points to {error.headers.get('Location', 'another place')}: give that as --url"
        return f"{where} answers {error.code}{said}{f' ({hint})' if hint else ''}"

    def _explain(self, where: str, error: Exception) -> str:
        """A broken connection in words."""
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return f"{where} gave no answer within {self.timeout:g} s: raise --timeout, or lower --batch-size"
        if isinstance(cause, ConnectionRefusedError):
            return f"nothing listens at {self.url} (connection refused): start the server, or correct --url"
        return (
            f"{where} cannot be reached ({type(cause).__name__}: {cause}): correct --url, or look at the server's log"
        )


class _Refused(ServerError):
    """An HTTP status that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _read(answer: Mapping[str, object], url: str) -> Completion:
    """A completion. Raises ServerError where it lacks its text."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
        raise ServerError(f"{url}/completions answers without choices[0].text: is it an OpenAI-compatible server?")
    told = choice.get("logprobs")
    logprobs = told if isinstance(told, dict) else {}
    counted = answer.get("usage")
    usage = counted if isinstance(counted, dict) else {}
    numbers = _list_of(int, logprobs.get("token_logprobs"), float, type(None))
    return Completion(
        text=choice["text"],
        stopped=choice.get("finish_reason") in ENDED,
        token_ids=_list_of(int, choice.get("token_ids")),
        tokens=_list_of(str, logprobs.get("tokens")),
        logprobs=None if numbers is None else tuple(None if one is None else float(one) for one in numbers),
        num_prompt_tokens=_count(usage.get("prompt_tokens")),
        num_tokens=_count(usage.get("completion_tokens")),
    )


def _list_of(kind: type, value: object, *others: type) -> tuple | None:
    """``value`` if it is a list of nothing else."""
    return tuple(value) if isinstance(value, list) and all(type(one) in (kind, *others) for one in value) else None


def _count(value: object) -> int | None:
    return value if type(value) is int else None


def _message(raw: str) -> str:
    """What an error's body says, in the forms that servers use."""
    try:
        found = json.loads(raw)
    except ValueError:
        return raw
    inner = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        inner = inner.get("message", inner.get("detail", inner))
    return inner if isinstance(inner, str) else json.dumps(inner)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "no model"
