"""The commands of a conversation, as lines of a pipe."""

import json
import re

import pytest

from paceline.api import SamplingParams, generate, load
from paceline.cli import EXIT_BAD_INPUT
from paceline.cli.chat.commands import COMMANDS
from paceline.cli.chat.settings import NAMES, set_option, shown
from tests.api import checkpoints
from tests.api.checkpoints import pair
from tests.cli.chat.talking import ASKED, SAMPLED, Script, answerer, dialogue, printed, results_of, talk

WORDS = (pair().target, "--format", "text", "--max-tokens", 12, "--ignore-eos")


@pytest.fixture(scope="module")
def target():
    return load(pair().target)


def test_lines_of_a_pipe_are_answered_one_by_one(target, monkeypatch, capsys, tmp_path):
    path = tmp_path / "talk.json"
    code, said = talk(monkeypatch, capsys, [ASKED, "", f"/save {path}", "return"], *WORDS, "--draft", pair().draft)
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.0)
    (first,) = generate(target, ASKED, params)
    (second,) = generate(target, f"{ASKED}{first.text}\nreturn", params)
    assert code == 0 and said.out == f"{first.text}\nsaved as {path}\n{second.text}\n" and said.err == ""
    messages = json.loads(path.read_text())["messages"]
    assert messages == [{"role": "user", "content": ASKED}, {"role": "assistant", "content": first.text}]
    code, said = talk(monkeypatch, capsys, ["return"], *WORDS, "--load", path)
    assert code == 0 and said.out == f"{second.text}\n"


def test_a_line_that_is_wrong_fails_alone(monkeypatch, capsys):
    lines = [b"\xff\xfe\n", "/retry", "/sett", "/undo now", "/load", "/load ./none", "/save x", "/edit", ASKED]
    code, said = talk(monkeypatch, capsys, lines, *WORDS)
    assert code == 1 and len(said.out) > 8
    errors = said.err.splitlines()
    for error, words in zip(
        errors,
        [
            "line 1 of standard input is not UTF-8: convert it",
            "there is no message of yours yet",
            "/sett: no such command; did you mean /set? (// begins a message with a slash)",
            "/undo now: it takes nothing; give /undo",
            "/load: give /load FILE",
            "none: No such file or directory",
            "/save x: nothing was said yet",
            "there is no message of yours yet",
        ],
        strict=True,
    ):
        assert error.startswith("paceline: ") and words in error


def test_commands_change_what_is_answered(target, monkeypatch):
    found = results_of(monkeypatch)
    lines = [
        ASKED,
        "return",
        "/undo",
        "/edit for item",
        "/clear",
        "/system # code",
        "x = 1",
        "/clear",
        "/system",
        "//y",
    ]
    made = dialogue(answerer(target), *lines)
    assert made.run() == 0
    prompts = [target.tokenizer.decode(result.prompt_tokens) for result in found]
    assert prompts[0] == ASKED and prompts[1].endswith("\nreturn")
    assert prompts[2:] == ["for item", "# code\nx = 1", "/y"]
    assert made.conversation.messages[0] == {"role": "user", "content": "/y"}


def test_edit_gives_the_last_message_back(target):
    script = Script("//path", "/edit", "changed", "/quit", "not read")
    made = dialogue(answerer(target), reader=script, stays=True)
    assert made.run() == 0
    assert script.defaults == ["", "", "//path", ""] and script.left == ["not read"]
    assert [message["content"] for message in made.conversation.messages[::2]] == ["changed"]


def test_help_and_lists_name_everything(target):
    made = dialogue(answerer(target), "/help", "/set", "/show", "/stats", ASKED, "/drafter off", ASKED, "/stats")
    assert made.run() == 0
    out, _ = printed(made)
    assert all(f"/{name}" in out for name in COMMANDS) and all(name in out for name in NAMES)
    assert "no answers yet" in out and re.search(r"conversation +0 messages, 0 of 512 tokens", out)
    assert re.search(r"drafter model, depth 4: 24 tokens in .*\n", out) and "drafter model (off): 24 tokens" in out


def test_options_are_read_by_the_sampling_parameters(target, monkeypatch):
    found = results_of(monkeypatch)
    lines = [ASKED, "/set temperature 1", "/set max_tokens 5", "/retry", "/set temperature default", "/retry"]
    made = dialogue(answerer(target), *lines, params=SamplingParams(temperature=0.0, max_tokens=9, seed=3))
    assert made.run() == 0 and [len(result.token_ids) for result in found] == [9, 5, 5]
    assert made.params.temperature == 1.0 and found[1].token_ids == found[1].token_ids
    made = dialogue(
        answerer(target), "/set temperature -1", "/set top_p x", "/set n 2", "/set temprature 1", "/set zzz 1"
    )
    assert made.run() == 1
    err = " ".join(printed(made)[1].split())
    for words in (
        "temperature=-1",
        "top_p='x': give a number",
        "/set n: a conversation goes on from one answer",
        "/set temprature: no such option; did you mean temperature?",
        "/set zzz: no such option; /set lists all",
    ):
        assert words in err
    assert made.params == dialogue(answerer(target)).params


@pytest.mark.parametrize("name", NAMES)
def test_an_option_is_shown_as_it_is_read(name):
    values = {"stop": ["a", "b"], "logit_bias": {"3": 1.5}, "filter_order": "vllm", "top_p": 0.5}
    params = SamplingParams(guidance_scale=2.0)
    if name in values:
        params = params.updated({name: values[name] if name != "logit_bias" else {3: 1.5}})
    assert set_option(SamplingParams(guidance_scale=2.0), name, shown(params, name)) == params


def test_guidance_can_be_set(target, monkeypatch):
    found = results_of(monkeypatch)
    made = dialogue(answerer(target), ASKED, "/set guidance_scale 2", "/retry", "/set guidance_scale 1", "/retry")
    assert made.run() == 0
    (guided,) = generate(
        target, ASKED, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True), guidance_scale=2
    )
    assert found[1].token_ids == guided.token_ids and found[2].token_ids == found[0].token_ids


def test_drafters_are_named_and_refused(target, monkeypatch):
    found = results_of(monkeypatch)
    lines = [
        "/drafter on",
        "/drafter model",
        "/drafter nothing",
        "/depth 4",
        f"/drafter {pair().draft}",
        ASKED,
        "/drafter",
    ]
    made = dialogue(answerer(target, draft=False), *lines, params=SAMPLED)
    assert made.run() == 1 and sum(found[0].stats.drafted) > 0
    out, err = printed(made)
    assert "/drafter on: no drafter was given; name one, such as /drafter ngram" in err
    assert "/drafter model: no draft model was given; start with --draft DIR" in err
    assert "unknown drafter 'nothing'" in err and out.count(f"drafter {pair().draft}, depth 4") == 2


def test_a_drafter_that_cannot_be_made_changes_nothing(target, tmp_path, monkeypatch):
    found = results_of(monkeypatch)
    other = checkpoints.nothing_in_common(tmp_path / "other")
    made = dialogue(answerer(target), ASKED, f"/drafter {other}", "/retry", "/drafter")
    assert made.run() == 1 and found[0].token_ids == found[1].token_ids
    assert "drafter model, depth 4" in printed(made)[0] and sum(found[1].stats.drafted) > 0


REFUSED = {
    "no template": (
        (pair().target,),
        "has no chat template: give --format transcript, which writes User: and Assistant:",
    ),
    "n": ((*WORDS, "-n", 2), "--n 2: a conversation goes on from one answer; /retry gives another one; leave it out"),
    "logprobs": ((*WORDS, "--logprobs", 2), "--logprobs 2: a text cannot show them"),
    "rejected": ((*WORDS, "--show-rejected"), "--show-rejected without a drafter"),
    "profile": ((*WORDS, "--profile", "p.json"), "--profile p.json without a drafter: it is for draft lengths"),
    "embedded": (("--drafter", "none", "--show-rejected"), "--show-rejected without a drafter"),
    "length of drafts": (
        ("--num-draft-tokens", 4, "--profile", "constraints.txt"),
        "--profile constraints.txt with --num-draft-tokens 4: it is for lengths that are chosen",
    ),
    "file": ((*WORDS, "--load", "none.json"), "none.json: No such file or directory"),
    "format": ((pair().target, "--format", "prose"), "prose: known are template, transcript, text"),
    "model": (("./nowhere",), "--model cannot be loaded: no such model directory: nowhere"),
    "length": ((*WORDS, "--max-length", 1), "1: give at least 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_be_honoured_are_refused(case, monkeypatch, capsys):
    words, message = REFUSED[case]
    code, said = talk(monkeypatch, capsys, ["x"], *words)
    assert code == EXIT_BAD_INPUT and message in " ".join(said.err.split()) and said.out == ""


def test_two_system_messages_are_refused(monkeypatch, capsys, tmp_path):
    path = tmp_path / "talk.json"
    path.write_text('[{"role": "system", "content": "x"}]')
    code, said = talk(monkeypatch, capsys, [], *WORDS, "--load", path, "--system", "y")
    assert code == EXIT_BAD_INPUT and "--system, and a system message in" in said.err
