"""The client negotiates the request fields, parses responses, and reports every error in one line."""

import socket
import threading

import pytest

from paceline.audit.client import EXTRA_FIELDS, Completion, CompletionClient, CompletionRequest, ServerError
from tests.audit.stub import PLAIN, answering

REQUEST = CompletionRequest(prompt="def f(", max_tokens=4, temperature=1.0, seed=7)
GOOD = {"choices": [{"text": "x)", "finish_reason": "length"}]}
KEY = "sk-secret-1234"


def numbered(count):
    return [CompletionRequest(prompt=str(number), max_tokens=1, temperature=0.0, seed=0) for number in range(count)]


def complete(answer, requests=(REQUEST,), **options):
    with answering(answer) as url:
        return CompletionClient(url=url, **options).complete_all("m", requests, max_concurrency=3)


@pytest.mark.parametrize("level", range(len(EXTRA_FIELDS)))
def test_rejected_extra_fields_are_not_sent_again(level):
    seen = []

    def answer(path, body, headers):
        seen.append(body)
        accepted = set(body) - PLAIN <= set(EXTRA_FIELDS[level])
        return (200, GOOD) if accepted else (400 + 22 * (level % 2), {"detail": "unknown"})

    complete(answer, [REQUEST] * 4)
    assert len(seen) == level + 4
    plain = {"model": "m", "prompt": "def f(", "max_tokens": 4, "temperature": 1.0, "top_p": 1.0, "seed": 7}
    assert seen[-1] == {**plain, **EXTRA_FIELDS[level]}


def test_completions_keep_the_order_of_requests_under_bounded_concurrency():
    requests, running, counts, lock = numbered(9), set(), [], threading.Lock()

    def answer(path, body, headers):
        with lock:
            running.add(body["prompt"])
            counts.append(len(running))
        threading.Event().wait(0.02)
        with lock:
            running.discard(body["prompt"])
        return 200, {"choices": [{"text": body["prompt"]}]}

    assert [one.text for one in complete(answer, requests)] == [request.prompt for request in requests]
    assert 1 < max(counts) <= 3


def test_failed_request_stops_the_others():
    seen = []

    def answer(path, body, headers):
        seen.append(body["prompt"])
        return (500, {"error": "gone"}) if len(seen) > 5 else (200, GOOD)

    with pytest.raises(ServerError, match="answers 500: gone"):
        complete(answer, numbered(200))
    assert len(seen) < 50


FULL = {
    "text": "x)",
    "finish_reason": "stop",
    "token_ids": [3, 4],
    "logprobs": {"tokens": ["x", ")"], "token_logprobs": [None, -1]},
}
MALFORMED = {"text": "", "token_ids": ["a"], "logprobs": {"tokens": [1], "token_logprobs": "no"}}
RESPONSES = {
    "full": (
        {"choices": [FULL], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        Completion(
            text="x)",
            stopped=True,
            token_ids=(3, 4),
            tokens=("x", ")"),
            logprobs=(None, -1.0),
            num_prompt_tokens=3,
            num_tokens=2,
        ),
    ),
    "text only": (GOOD, Completion(text="x)", stopped=False)),
    "malformed fields": (
        {"choices": [MALFORMED], "usage": {"prompt_tokens": True, "completion_tokens": "2"}},
        Completion(text="", stopped=False),
    ),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_response_fields_are_parsed_and_missing_ones_are_none(case):
    response, completion = RESPONSES[case]
    assert complete(lambda *_: (200, response)) == [completion]


ERRORS = {
    "OpenAI": (
        (400, {"error": {"message": "max_tokens is\ntoo large"}}),
        "/v1/completions answers 400: max_tokens is too large",
    ),
    "message": ((400, {"message": "no such prompt"}), "answers 400: no such prompt"),
    "FastAPI": ((404, {"detail": "Not Found"}), "/v1/completions answers 404: Not Found"),
    "FastAPI list": ((422, {"detail": [{"msg": "missing"}]}), 'answers 422: [{"msg": "missing"}]'),
    "empty": ((500, b""), "/v1/completions answers 500"),
    "no JSON": ((503, b"<html>busy</html>"), "answers 503: <html>busy</html>"),
    "no key": ((401, {}), "answers 401: {} (give --api-key-env VAR, the variable that holds the key)"),
    "too many requests": ((429, {"error": "slow down"}), "answers 429: slow down (lower --batch-size, or wait)"),
    "redirect": ((307, {}), "it redirects to http://127.0.0.1:1/elsewhere: give that as --url"),
    "HTML": ((200, b"<html>"), "answers without a JSON object: is it an OpenAI-compatible server?"),
    "JSON list": ((200, []), "answers without a JSON object"),
    "no choices": ((200, {"choices": []}), "answers without choices[0].text: is it an OpenAI-compatible server?"),
    "no text": ((200, {"choices": [{"message": {"content": "hi"}}]}), "answers without choices[0].text"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_error_responses_are_reported_in_one_line(case):
    answer, message = ERRORS[case]
    with pytest.raises(ServerError) as error:
        complete(lambda *_: answer)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_key_is_sent_and_never_shown():
    seen = []

    def answer(path, body, headers):
        seen.append(headers["Authorization"])
        return 401, {"error": {"message": f"wrong key {headers['Authorization']}"}}

    with pytest.raises(ServerError) as error:
        complete(answer, key=KEY)
    assert seen == [f"Bearer {KEY}"]
    assert KEY not in str(error.value) and "wrong key Bearer *** (check the key)" in str(error.value)
    with pytest.raises(ValueError, match="the key contains spaces") as error:
        CompletionClient(url="http://localhost/v1", key=f"{KEY}\nX: y")
    assert KEY not in str(error.value)


def test_refused_connection_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ServerError, match=f"nothing listens at {url} .connection refused.: start the server"):
        CompletionClient(url=url).find_model(None, candidates=())
    with pytest.raises(ServerError, match=r"/v1/models cannot be reached \(ConnectError: .*correct --url"):
        CompletionClient(url="http://nowhere.invalid/v1").find_model(None, candidates=())


def test_timeout_is_named():
    with pytest.raises(ServerError, match=r"gave no answer within 0.1 s: raise --timeout, or lower --batch-size"):
        complete(lambda *_: (threading.Event().wait(0.5), (200, GOOD))[1], timeout=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(url="localhost:8000"), "--url localhost:8000: give one like http://localhost:8000/v1"),
        (dict(url="file:///etc/passwd"), "--url file:///etc/passwd: give one like"),
        (dict(url="http://"), "--url http://: give one like"),
        (dict(url="http://host:port/v1"), "--url http://host:port/v1: give one like"),
        (dict(url="http://me:secret@host/v1"), "--url with a user or password in it: give the key by --api-key-env"),
        (dict(url="http://host/v1", timeout=0.0), "--timeout 0: give seconds above 0"),
        (dict(url="http://host/v1", timeout=float("nan")), "--timeout nan: give seconds above 0"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError) as error:
        CompletionClient(**options)
    assert message in str(error.value) and "secret" not in str(error.value)


LISTED = {
    "the only one": (["a"], None, "a"),
    "the given name": (["a", "b"], "b", "b"),
    "a candidate": (["a", "dir"], None, "dir"),
    "nothing listed": ([], "b", "b"),
}


@pytest.mark.parametrize("case", LISTED)
def test_model_is_found_in_the_server_list(case):
    listed, name, found = LISTED[case]
    with answering(lambda *_: (200, {"data": [{"id": name} for name in listed]})) as url:
        assert CompletionClient(url=f"{url}/").find_model(name, candidates=("/x/dir", "dir")) == found


def data(*names):
    return 200, {"data": [{"id": name} for name in names]}


NOT_LISTED = {
    "another": (data("a", "b"), "c", "--served-model c: {url} serves a, b; give one"),
    "several": (data("a", "b"), None, "{url} serves a, b: say which by --served-model NAME"),
    "many": (data(*map(str, range(10))), None, "{url} serves 0, 1, 2, 3, 4, 5, 6, 7 and 2 more: say which"),
    "none": (data(), None, "{url} serves no model: say which by --served-model NAME"),
    "no list": ((200, {"object": "list"}), None, "{url} serves no model"),
    "not found": ((404, {}), None, "{url}/models answers 404: {{}}; a list of models is at URL/models: does --url end"),
    "unauthorised": ((401, {}), "a", "{url}/models answers 401: {{}} (give --api-key-env VAR"),
}


@pytest.mark.parametrize("case", NOT_LISTED)
def test_model_that_is_not_listed_is_refused_with_the_list(case):
    answer, name, message = NOT_LISTED[case]
    with answering(lambda *_: answer) as url:
        with pytest.raises(ServerError) as error:
            CompletionClient(url=url).find_model(name, candidates=())
        assert message.format(url=url) in str(error.value)


def test_given_name_is_used_where_the_server_has_no_list():
    with answering(lambda *_: (404, {})) as url:
        assert CompletionClient(url=url).find_model("a", candidates=()) == "a"
