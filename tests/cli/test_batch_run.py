"""Requests of a file: the engine's answers, in order, each once, whatever ended a run before."""

import asyncio
import json
import re
import subprocess
import sys
import time

import httpx
import pytest

from paceline.api import Engine, SamplingParams, load
from paceline.cli.batch_file import run as batch_run
from paceline.cli.batch_file.work import AHEAD
from paceline.cli.options import ModelOptions
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from paceline.serve.app import make_app
from paceline.serve.settings import Settings
from tests.cli.batch_files import (
    CHAT,
    answer_file,
    chatty,
    command,
    lasting,
    lines_of,
    request,
    requests,
    write,
)
from tests.cli.test_batch import interrupt_after

COUNT = 14


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "in.jsonl", requests(COUNT))


def texts_of(line):
    assert line["response"]["status_code"] == 200 and line["error"] is None
    choices = line["response"]["body"]["choices"]
    assert [one["index"] for one in choices] == list(range(len(choices)))
    return [one["text"] if "text" in one else one["message"]["content"] for one in choices]


@pytest.mark.parametrize("drafted", [False, True])
def test_answers_are_those_of_the_engine_in_the_order_of_the_requests(tmp_path, drafted):
    target = load(str(chatty()))
    several = ["def g(", "for item"]
    lines = [*requests(6), request(6, n=2, prompt=several), request(7, prompt=[5, 6, 7])]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert answer_file(source, output, "--stats", drafted=drafted) == 0
    found = lines_of(output)
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in lines]
    assert len({line["id"] for line in found}) == len(lines)
    engine = Engine(target)
    for line, asked in zip(found, lines, strict=True):
        body = asked["body"]
        chat = asked["url"] == CHAT
        prompt = [target.tokenizer.chat(body["messages"])] if chat else body["prompt"]
        params = SamplingParams(**{name: body[name] for name in ("max_tokens", "temperature", "seed")})
        wanted = engine.generate(prompt, params, n=body.get("n", 1))
        assert texts_of(line) == [one.text for one in wanted]
        answer = line["response"]["body"]
        assert answer["object"] == ("chat.completion" if chat else "text_completion")
        assert answer["usage"]["completion_tokens"] == sum(len(one.token_ids) for one in wanted)
    assert not (tmp_path / "out.jsonl.waiting").exists()


def test_responses_are_the_chats_that_they_stand_for(tmp_path):
    asked = {"input": "x = 1", "max_output_tokens": 9, "temperature": 0.8, "seed": 3}
    lines = [{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": asked}]
    lines.append(request(3, CHAT, messages=[{"role": "user", "content": "x = 1"}], max_tokens=9))
    lines.append({**lines[0], "custom_id": "b", "body": {**asked, "store": True}})
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert answer_file(source, output) == 1
    first, chat, refused = lines_of(output)
    answer = first["response"]["body"]
    (text,) = texts_of(chat)
    assert answer["output"][0]["content"][0]["text"] == text != ""
    assert answer["object"] == "response" and answer["usage"]["output_tokens"] == 9
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["param"] == "store"


def test_bodies_are_those_of_the_server(tmp_path):
    wrong = [request(6, temperature=-1), request(7, n=99), request(8, CHAT, messages=[]), request(9, max_tokens=9999)]
    lines = [*requests(6), request(5, n=2, logprobs=2), *wrong, request(10, model="other"), request(11, topk=3)]
    lines = [{**line, "custom_id": str(number)} for number, line in enumerate(lines)]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert answer_file(source, output) == 1

    async def ask():
        app = make_app(Engine(load(str(chatty())), max_length=None), Settings(names=(str(chatty()),)))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return [await client.post(line["url"], json=line["body"]) for line in lines]

    served = [{"response": {"status_code": one.status_code, "body": one.json()}} for one in asyncio.run(ask())]
    for found, wanted in zip(lasting(lines_of(output)), lasting(served), strict=True):
        assert found["response"]["status_code"] == wanted["response"]["status_code"]
        assert found["response"]["body"] == wanted["response"]["body"]
    assert [line["response"]["status_code"] for line in served] == [200] * 7 + [400] * 4 + [404, 400]


def test_failed_requests_fail_alone_and_may_go_to_a_file_of_their_own(tmp_path, capsys):
    lines = [request(0), request(1, stream=True), request(2), {**request(3), "method": "GET"}, request(4)]
    lines += [{**request(5), "url": "/v1/embeddings"}, {**request(6), "body": 3}, request(7, CHAT, prompt="x")]
    lines += [{**request(8), "more": 1}, request(9)]
    source = write(tmp_path / "in.jsonl", lines)
    assert answer_file(source, tmp_path / "all.jsonl") == 1
    said = capsys.readouterr().err
    assert "paceline: 6 of 10 requests are invalid; line 2 ('request-1'): stream=True" in said
    assert "paceline: 6 of 10 requests failed; line 2 ('request-1'): stream=True" in said
    found = lines_of(tmp_path / "all.jsonl")
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in lines]
    assert found[1]["response"]["body"]["error"]["param"] == "stream" and found[1]["error"] is None
    for number, reason in {3: "method='GET': give POST", 5: "url='/v1/embeddings'", 6: "body=3", 8: "more: no"}.items():
        assert found[number]["response"] is None and found[number]["error"]["code"] == "invalid_request"
        assert found[number]["error"]["message"].startswith(reason)
    output, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    for _ in range(2):
        assert answer_file(source, output, "--errors", errors) == 1
        assert "6 of 10 requests failed" in capsys.readouterr().err
        bad = [line["custom_id"] for line in lines_of(errors)]
        assert bad == [f"request-{number}" for number in (1, 3, 5, 6, 7, 8)]
        good = [line["custom_id"] for line in lines_of(output)]
        assert good == [f"request-{number}" for number in (0, 2, 4, 9)]
    assert answer_file(source, output) == 2
    assert "the --errors FILE that it was written with" in capsys.readouterr().err


REFUSED = {
    "twice": ([request(0), request(1), request(0)], "custom_id 'request-0' stands in lines 1 and 3"),
    "no JSON": ([request(0), "{"], "line 2: not JSON"),
    "no object": (["[1]"], "line 1: no JSON object"),
    "no custom_id": (['{"method": "POST"}'], "line 1: custom_id=None: give a text"),
    "a number": ([{**request(0), "custom_id": 3}], "line 1: custom_id=3: give a text"),
    "nothing": ([""], "no requests in it"),
    "depth": (["[" * 100_000], "line 1: nested too deeply"),
    "nul": (['{"a": "\0"}'], "line 1: not UTF-8 text; convert it, for UTF-16"),
    "long": (["x" * (5 << 20)], "line 1: more than 4198400 bytes"),
    "none valid": ([request(0, temperature=-1)], "all 1 requests are invalid: line 1 ('request-0'): temperature=-1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_is_refused_before_a_model_is_loaded(case, tmp_path, capsys, monkeypatch):
    lines, message = REFUSED[case]
    monkeypatch.setattr(ModelOptions, "load", None)
    assert answer_file(write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl") == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()


def test_options_are_refused_before_anything_is_read(source, tmp_path, capsys):
    for words, message in (
        ([source, source], "is another file of this run"),
        ([source, tmp_path / "out.jsonl", "--errors", tmp_path / "out.jsonl"], "is another file of this run"),
        ([source, tmp_path / "out.jsonl", "--workers", "2"], "without --ray: give --ray ADDRESS"),
        ([source, "-"], "give files, so that an interrupted run can be resumed"),
        ([tmp_path / "none.jsonl", tmp_path / "out.jsonl"], "no such file; give a file of requests"),
        ([source, tmp_path / "no" / "out.jsonl"], "OUTPUT .* no such directory"),
    ):
        assert answer_file(*words) == 2
        assert re.search(message, capsys.readouterr().err)


def test_check_lists_what_is_invalid_and_needs_no_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ModelOptions, "load", None)
    source = write(tmp_path / "in.jsonl", [request(0), request(1, top_p=3), "", request(2, model="no")])
    assert answer_file(source, tmp_path / "out.jsonl", "--check") == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith("line 2 ('request-1'): top_p=3")
    assert said.out.splitlines()[1].startswith("line 4 ('request-2'): model 'no' does not exist")
    assert said.err == "3 requests, 2 of them invalid\n" and not (tmp_path / "out.jsonl").exists()
    assert answer_file(write(tmp_path / "good.jsonl", requests(2)), tmp_path / "out.jsonl", "--check") == 0


@pytest.mark.parametrize("errors", [False, True])
def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, errors):
    lines = requests(COUNT)
    lines[3], lines[7] = request(3, temperature=-1), {**request(7), "method": "GET"}
    source, whole, output = write(tmp_path / "in.jsonl", lines), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert answer_file(source, whole) == 1
    options = ["--errors", tmp_path / "errors.jsonl"] if errors else []
    begun = []
    monkeypatch.setattr(
        Runner,
        "begin",
        lambda *given, real=Runner.begin, **options: begun.extend(given[1]) or real(*given, **options),
    )
    for steps in (4, 3, 3):
        with monkeypatch.context() as patch:
            patch.setattr(batch_run, "work_through", _stopped_after(steps, batch_run.work_through))
            assert answer_file(source, output, *options) == 130
        assert output.read_bytes()[-1:] in (b"\n", b"")
    done = len(lines_of(output)) + len(lines_of(tmp_path / "errors.jsonl") if errors else ())
    waiting = {json.loads(line)["index"] for line in (tmp_path / "out.jsonl.waiting").read_bytes().splitlines() if line}
    left = set(range(done, COUNT)) - waiting - {3, 7}
    begun.clear()
    assert answer_file(source, output, *options) == 1
    assert len(begun) == len(left), "what was finished is not done again"
    both = lines_of(output) + (lines_of(tmp_path / "errors.jsonl") if errors else [])
    ordered = sorted(both, key=lambda line: int(line["custom_id"].partition("-")[2]))
    assert lasting(ordered) == lasting(lines_of(whole))
    if not errors:
        assert both == ordered
    assert not (tmp_path / "out.jsonl.waiting").exists()


def _stopped_after(count, real):
    """Work that is interrupted once ``count`` answers have come."""

    def stopped(engine, settings, lines, put, *, admit):
        left = [count]

        def counted(line, answer):
            put(line, answer)
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        real(engine, settings, lines, counted, admit=admit)

    return stopped


def test_a_step_that_fails_fails_its_requests_and_a_dead_engine_none(source, tmp_path, monkeypatch, caplog):
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3, RuntimeError("broken"))
        assert answer_file(source, output) == 1
    failed = [line for line in lines_of(output) if line["response"]["status_code"] == 500]
    assert 0 < len(failed) <= 4 and len(lines_of(output)) == COUNT
    assert "log says why" in failed[0]["response"]["body"]["error"]["message"]
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3, SystemExit("broken"))
        with pytest.raises(RuntimeError, match="the engine has ended"):
            answer_file(source, output, "--overwrite")
    assert all(line["response"]["status_code"] == 200 for line in lines_of(output))
    assert answer_file(source, output) == 0 and len(lines_of(output)) == COUNT


def test_changed_requests_are_refused_and_new_ones_at_the_end_are_done(source, tmp_path, capsys):
    output, lines = tmp_path / "out.jsonl", requests(COUNT)
    assert answer_file(source, output) == 0
    before = output.read_bytes()
    write(source, [*lines, request(COUNT)])
    assert answer_file(source, output) == 0 and len(lines_of(output)) == COUNT + 1
    assert output.read_bytes().startswith(before)
    for changed, message in (
        (lines, f"has a result for line {COUNT + 1}, but there are {COUNT}"),
        ([*lines[:3], request(3, seed=99), *lines[4:], request(COUNT)], "for another prompt in line 4"),
        ([lines[1], lines[0], *lines[2:], request(COUNT)], "for another prompt in line 1"),
    ):
        write(source, changed)
        assert answer_file(source, output) == 2
        said = capsys.readouterr().err
        assert message in said and "give another OUTPUT, " in said
    write(source, [*lines, request(COUNT)])
    assert answer_file(source, output, "--max-model-len", 64) == 2
    assert "was written with another --max-model-len or --served-model-name" in capsys.readouterr().err


def test_a_file_that_changes_while_it_is_read_ends_the_run(source, tmp_path, capsys, monkeypatch):
    real = batch_run.make_engine

    def change(*arguments, **options):
        write(source, [*requests(COUNT - 1), request(99)])
        return real(*arguments, **options)

    monkeypatch.setattr(batch_run, "make_engine", change)
    assert answer_file(source, tmp_path / "out.jsonl") == 2
    assert f"has changed in line {COUNT}" in capsys.readouterr().err


def test_rows_are_full_while_requests_are_left_and_few_are_held(tmp_path, monkeypatch):
    source, output = write(tmp_path / "in.jsonl", requests(30)), tmp_path / "out.jsonl"
    free, held, read, real = [], [], batch_run.read_lines, Scheduler.advance

    def counted(*arguments):
        for line in read(*arguments):
            journal = output.with_name("out.jsonl.waiting").read_text().splitlines()
            written = output.read_bytes().count(b"\n")
            waiting = {json.loads(one)["index"] for one in journal if one}
            held.append(line.index - written - sum(index >= written for index in waiting))
            yield line

    def advance(self):
        time.sleep(0.02)  # a step of so small a model is faster than a request is read and written
        found = real(self)
        if len(held) < 30:
            free.append(len(self._free))
        return found

    monkeypatch.setattr(batch_run, "read_lines", counted)
    monkeypatch.setattr(Scheduler, "advance", advance)
    assert answer_file(source, output) == 0
    assert len(held) == 30 and max(held) == AHEAD * 4
    assert sum(free) / len(free) < 1, "of four rows"


def test_answers_that_wait_for_a_slow_one_are_few(tmp_path, monkeypatch):
    lines = [request(0, max_tokens=100, ignore_eos=True), *(request(number, max_tokens=2) for number in range(1, 25))]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    monkeypatch.setattr(batch_run, "WINDOW", 6)
    begun = []
    read = batch_run.read_lines
    monkeypatch.setattr(
        batch_run,
        "read_lines",
        lambda *given: (begun.append((line.index, output.stat().st_size)) or line for line in read(*given)),
    )
    assert answer_file(source, output) == 0 and len(lines_of(output)) == 25
    assert max(index for index, size in begun if size == 0) == 6, "one more than may be begun has been read"


def test_neither_fastapi_nor_a_socket_is_needed(source, tmp_path):
    program = (
        "import sys; sys.modules['fastapi'] = sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        f"from paceline.cli import run; assert run({command(source, tmp_path / 'out.jsonl')!r}) == 0"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(lines_of(tmp_path / "out.jsonl")) == COUNT
