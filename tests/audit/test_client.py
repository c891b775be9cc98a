"""The client asks in words that the server takes, reads what it tells, and says what is wrong in one line."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from paceline.audit.client import RUNGS, Ask, Completion, Server, ServerError

ASK = Ask(prompt="def f(", max_tokens=4, temperature=1.0, seed=7)
GOOD = {"choices": [{"text": "x)", "finish_reason": "length"}]}
KEY = "sk-secret-1234"


@contextmanager
def answering(answer):
    """A server that answers ``answer(path, body, headers)``: a status, and an object or bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.do_POST()

        def do_POST(self):
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answer(self.path, json.loads(raw) if raw else None, self.headers)
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def complete(answer, asks=(ASK,), **options):
    with answering(answer) as url:
        return Server(url=url, **options).complete_all("m", asks, at_once=3)


@pytest.mark.parametrize("rung", range(len(RUNGS)))
def test_what_a_server_does_not_know_is_asked_no_more(rung):
    seen = []

    def answer(path, body, headers):
        seen.append(body)
        extra = set(body) - {"model", "prompt", "max_tokens", "temperature", "top_p", "seed"}
        return (200, GOOD) if extra <= set(RUNGS[rung]) else (400 + 22 * (rung % 2), {"detail": "unknown"})

    complete(answer, [ASK] * 4)
    assert len(seen) == rung + 4
    plain = {"model": "m", "prompt": "def f(", "max_tokens": 4, "temperature": 1.0, "top_p": 1.0, "seed": 7}
    assert seen[-1] == {**plain, **RUNGS[rung]}


def test_answers_come_in_the_order_of_the_asks_and_several_at_once():
    asks = [Ask(prompt=str(number), max_tokens=1, temperature=0.0, seed=0) for number in range(9)]
    together, most, lock = set(), [], threading.Lock()

    def answer(path, body, headers):
        with lock:
            together.add(body["prompt"])
            most.append(len(together))
        threading.Event().wait(0.02)
        with lock:
            together.discard(body["prompt"])
        return 200, {"choices": [{"text": body["prompt"]}]}

    assert [one.text for one in complete(answer, asks)] == [ask.prompt for ask in asks]
    assert 1 < max(most) <= 3


def test_what_is_told_is_read_and_the_rest_is_none():
    told = {
        "choices": [
            {
                "text": "x)",
                "finish_reason": "stop",
                "token_ids": [3, 4],
                "logprobs": {"tokens": ["x", ")"], "token_logprobs": [None, -1]},
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    nothing = dict(token_ids=None, tokens=None, logprobs=None, num_prompt_tokens=None, num_tokens=None)
    for answer, read in (
        (
            told,
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
        (GOOD, Completion(text="x)", stopped=False, **nothing)),
        (
            {
                "choices": [{"text": "", "token_ids": ["a"], "logprobs": {"tokens": [1], "token_logprobs": "no"}}],
                "usage": {"prompt_tokens": True, "completion_tokens": "2"},
            },
            Completion(text="", stopped=False, **nothing),
        ),
    ):
        assert complete(lambda *_, answer=answer: (200, answer)) == [read]


WRONG = {
    "the server's own words": (
        (400, {"error": {"message": "max_tokens is\ntoo large"}}),
        "/v1/completions answers 400: max_tokens is too large",
    ),
    "words in another form": ((400, {"message": "no such prompt"}), "answers 400: no such prompt"),
    "words of FastAPI": ((404, {"detail": "Not Found"}), "/v1/completions answers 404: Not Found"),
    "words in a list": ((422, {"detail": [{"msg": "missing"}]}), 'answers 422: [{"msg": "missing"}]'),
    "no words": ((500, b""), "/v1/completions answers 500"),
    "no JSON": ((503, b"<html>busy</html>"), "answers 503: <html>busy</html>"),
    "no key": ((401, {}), "answers 401: {} (give --api-key-env VAR, the variable that holds the key)"),
    "too many": ((429, {"error": "slow down"}), "answers 429: slow down (lower --batch-size, or wait)"),
    "another place": ((307, {}), "it points to http://127.0.0.1:1/elsewhere: give that as --url"),
    "a page": ((200, b"<html>"), "answers with no JSON object: is it an OpenAI-compatible server?"),
    "a list": ((200, []), "answers with no JSON object"),
    "no choices": ((200, {"choices": []}), "answers without choices[0].text: is it an OpenAI-compatible server?"),
    "no text": ((200, {"choices": [{"message": {"content": "hi"}}]}), "answers without choices[0].text"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_answers_are_one_line(case):
    answer, message = WRONG[case]
    with pytest.raises(ServerError) as told:
        complete(lambda *_: answer)
    assert message in str(told.value) and "\n" not in str(told.value)


def test_the_key_is_sent_and_never_shown():
    seen = []

    def answer(path, body, headers):
        seen.append(headers["Authorization"])
        return 401, {"error": {"message": f"wrong key {headers['Authorization']}"}}

    with pytest.raises(ServerError) as told:
        complete(answer, key=KEY)
    assert seen == [f"Bearer {KEY}"]
    assert KEY not in str(told.value) and "wrong key Bearer *** (check the key)" in str(told.value)
    with pytest.raises(ValueError, match="the key holds spaces") as told:
        Server(url="http://localhost/v1", key=f"{KEY}\nX: y")
    assert KEY not in str(told.value)


def test_a_port_where_nobody_listens_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ServerError, match=f"nothing listens at {url} .connection refused.: start the server"):
        Server(url=url).find_model(None, others=())


def test_no_answer_ends_after_the_timeout():
    with pytest.raises(ServerError, match=r"gave no answer within 0.1 s: raise --timeout, or lower --batch-size"):
        complete(lambda *_: (threading.Event().wait(0.5), (200, GOOD))[1], timeout=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(url="localhost:8000"), "--url localhost:8000: give one like http://localhost:8000/v1"),
        (dict(url="file:///etc/passwd"), "--url file:///etc/passwd: give one like"),
        (dict(url="http://"), "--url http://: give one like"),
        (dict(url="http://me:secret@host/v1"), "--url with a user or password in it: give the key by --api-key-env"),
        (dict(url="http://host/v1", timeout=0.0), "--timeout 0: give seconds above 0"),
        (dict(url="http://host/v1", timeout=float("nan")), "--timeout nan: give seconds above 0"),
    ],
)
def test_what_is_no_server_is_refused(options, message):
    with pytest.raises(ValueError) as told:
        Server(**options)
    assert message in str(told.value) and "secret" not in str(told.value)


LISTS = {
    "the only one": (["a"], None, "a"),
    "the one that is asked for": (["a", "b"], "b", "b"),
    "the one of the same name": (["a", "dir"], None, "dir"),
    "nothing listed": ([], "b", "b"),
}


@pytest.mark.parametrize("case", LISTS)
def test_the_model_is_found_in_the_list(case):
    listed, given, found = LISTS[case]
    with answering(lambda *_: (200, {"data": [{"id": name} for name in listed]})) as url:
        assert Server(url=f"{url}/").find_model(given, others=("/x/dir", "dir")) == found


NOT_LISTED = {
    "another": ((200, {"data": [{"id": "a"}, {"id": "b"}]}), "c", "--served-model c: {url} serves a, b; give one"),
    "several": (
        (200, {"data": [{"id": "a"}, {"id": "b"}]}),
        None,
        "{url} serves a, b: say which by --served-model NAME",
    ),
    "many": (
        (200, {"data": [{"id": str(number)} for number in range(10)]}),
        None,
        "{url} serves 0, 1, 2, 3, 4, 5, 6, 7 and 2 more: say which",
    ),
    "none": ((200, {"data": []}), None, "{url} serves no model: say which by --served-model NAME"),
    "no list": ((200, {"object": "list"}), None, "{url} serves no model"),
    "no such page": (
        (404, {}),
        None,
        "{url}/models answers 404: {{}}; a list of models is at URL/models: does --url end",
    ),
    "locked": ((401, {}), "a", "{url}/models answers 401: {{}} (give --api-key-env VAR"),
}


@pytest.mark.parametrize("case", NOT_LISTED)
def test_a_model_that_is_not_in_the_list_is_refused_with_what_is(case):
    answer, given, message = NOT_LISTED[case]
    with answering(lambda *_: answer) as url:
        with pytest.raises(ServerError) as told:
            Server(url=url).find_model(given, others=())
        assert message.format(url=url) in str(told.value)


def test_a_server_without_a_list_is_believed_a_name():
    with answering(lambda *_: (404, {})) as url:
        assert Server(url=url).find_model("a", others=()) == "a"


def test_one_that_fails_ends_the_others():
    asks = [Ask(prompt=str(number), max_tokens=1, temperature=0.0, seed=0) for number in range(200)]
    seen = []

    def answer(path, body, headers):
        seen.append(body["prompt"])
        return (500, {"error": "gone"}) if len(seen) > 5 else (200, GOOD)

    with pytest.raises(ServerError, match="answers 500: gone"):
        complete(answer, asks)
    assert len(seen) < 50
