import io
import json
import logging
import os
import re
import subprocess
import sys

import pytest

from paceline import __version__
from paceline.api import SamplingParams, Source, generate, load, stream
from paceline.cli import run
from paceline.cli.console import open_console, open_notes
from paceline.cli.show import AsText, SourcePrinter
from paceline.engine.runner import Runner
from tests.api import checkpoints
from tests.api.checkpoints import pair

PROMPT = "def add(first,"


def command(*arguments, model=None, prompt=PROMPT):
    return ["generate", "--model", str(model or pair().target), *map(str, arguments), prompt]


@pytest.fixture(scope="module")
def expected():
    return generate(load(pair().target), PROMPT, SamplingParams(max_tokens=24, temperature=0.0))[0]


@pytest.mark.parametrize("drafter", ["", "--drafter ngram", "--draft DRAFT", "--draft DRAFT --drafter model"])
def test_output_does_not_depend_on_the_drafter(drafter, expected, capsys):
    drafter = [str(pair().draft) if word == "DRAFT" else word for word in drafter.split()]
    assert run(command("--max-tokens", 24, "--quiet", *drafter)) == 0
    captured = capsys.readouterr()
    assert captured.out == expected.text + "\n"
    assert captured.err == ""


def test_json_holds_the_whole_result(expected, capsys):
    assert run(command("--max-tokens", 24, "--draft", pair().draft, "--num-draft-tokens", 3, "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["text"] == expected.text
    assert printed["tokens"] == list(expected.token_ids)
    assert printed["prompt_tokens"] == list(expected.prompt_tokens)
    assert printed["finish_reason"] == "length"
    assert len(printed["source"]) == 24 and set(printed["source"]) >= {"drafted", "corrected"}
    assert len(printed["stats"]["drafted"]) == 3
    assert printed["stats"]["acceptance_rate"] > 0.3 and printed["stats"]["emitted"] == 24
    seconds = printed["stats"]["seconds"]
    assert seconds["total"] > seconds["score"] > 0 and seconds["decide"] > 0
    assert (seconds["target"], seconds["verify"]) == (seconds["score"], seconds["decide"])  # deprecated


def test_sampling_options_reach_the_target(capsys):
    options = dict(temperature=0.9, top_k=30, top_p=0.8, min_p=0.01, seed=5)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    for verifier in ("coupled", "rejection", "lossy_typical:epsilon=0.01,delta=1"):
        assert run(command("--json", "--verifier", verifier, "--draft", pair().draft, "--max-tokens", 24, *words)) == 0
        tokens = json.loads(capsys.readouterr().out)["tokens"]
        target = load(pair().target)
        params = SamplingParams(max_tokens=24, **options)
        same = generate(target, PROMPT, params, drafter=pair().draft, verifier=verifier)
        assert tokens == list(same[0].token_ids)


def test_options_of_a_drafter_follow_its_name(capsys):
    words = ("--json", "--max-tokens", 24, "--num-draft-tokens", 5, "--drafter")
    assert run(command(*words, "ngram:max_ngram=7,min_ngram=7")) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["drafted"][0] == 0  # nothing repeats for so long
    assert run(command(*words, "ngram")) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["drafted"][0] > 0


def test_dash_reads_the_prompt_from_standard_input(expected, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert run(command("--max-tokens", 24, prompt="-")) == 0
    assert capsys.readouterr().out == expected.text + "\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_interruption_prints_what_was_generated(form, expected, capsys, monkeypatch):
    steps = []

    def interrupted(self, launch=Runner.launch):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return launch(self)

    monkeypatch.setattr(Runner, "launch", interrupted)
    words = ["--max-tokens", 24, "--draft", pair().draft, "--num-draft-tokens", 5]
    assert run(command(*words, *(["--json"] if form == "json" else []))) == 130
    printed = capsys.readouterr().out
    if form == "json":
        printed = json.loads(printed)
        assert printed["finish_reason"] == "cancelled"
        assert 3 <= len(printed["tokens"]) < 24
        assert printed["tokens"] == list(expected.token_ids[: len(printed["tokens"])])
    else:
        assert len(printed) > 3 and expected.text.startswith(printed[:-1]) and printed != expected.text + "\n"


def test_text_held_back_for_a_stop_string_is_printed_on_interruption(expected, capsys, monkeypatch):
    stop = expected.text[:6] + "?"  # its beginning comes at once, its end never

    def interrupted(self, launch=Runner.launch):
        if int(self.decoder.batch.steps[0]) == 2:
            raise KeyboardInterrupt
        return launch(self)

    monkeypatch.setattr(Runner, "launch", interrupted)
    assert run(command("--max-tokens", 24, "--stop", stop)) == 130
    printed = capsys.readouterr().out.removesuffix("\n")
    assert printed and expected.text.startswith(printed)


def test_held_back_text_of_the_second_sample_is_printed_on_interruption(capsys, monkeypatch):
    options = ["-n", 2, "--temperature", "0.9", "--max-tokens", 12, "--batch-size", 1]
    first, second = generate(load(pair().target), PROMPT, SamplingParams(n=2, temperature=0.9, max_tokens=12, seed=0))
    steps = []

    def interrupted(self, launch=Runner.launch):
        steps.append(1)
        if len(steps) == 12 + 4:
            raise KeyboardInterrupt
        return launch(self)

    monkeypatch.setattr(Runner, "launch", interrupted)
    assert run(command(*options, "--stop", second.text[:8] + "?")) == 130
    shown = capsys.readouterr().out.removeprefix(f"{first.text}\n\n").removesuffix("\n")
    assert shown and second.text.startswith(shown)


def test_options_reach_the_stream_and_defaults_are_greedy_and_short(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "paceline.api.stream",
        lambda target, prompt, params, **options: seen.append((params, options)) or stream(target, prompt, params),
    )
    words = ("--drafter", "ngram", "--num-draft-tokens", 2, "--verifier", "rejection", "--batch-size", 2)
    words += ("--max-tokens", 3, "--top-k", 9)
    assert run(command(*words)) == run(command()) == 0
    defaults = {
        "drafter": None,
        "verifier": "coupled",
        "num_draft_tokens": "auto",
        "batch_size": None,
        "profile": "auto",
        "rejected": False,
    }
    assert seen == [
        (
            SamplingParams(temperature=0.0, max_tokens=3, seed=0, top_k=9),
            {**defaults, "drafter": "ngram", "verifier": "rejection", "num_draft_tokens": 2, "batch_size": 2},
        ),
        (SamplingParams(temperature=0.0, max_tokens=128, seed=0), defaults),
    ]


def test_samples_come_one_after_another_and_as_json_lines(capsys):
    options = ["-n", 3, "--temperature", "0.9", "--max-tokens", 12, "--draft", pair().draft]
    params = SamplingParams(n=3, temperature=0.9, max_tokens=12, seed=0)
    expected = generate(load(pair().target), PROMPT, params)
    assert run(command(*options)) == 0
    assert capsys.readouterr().out == "\n".join(f"{result.text}\n" for result in expected)
    assert run(command(*options, "--json")) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["sample"], line["text"], line["seed"]) for line in printed] == [
        (result.sample, result.text, result.seed) for result in expected
    ]


def test_terminal_has_a_rule_for_each_sample_and_a_summary(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    options = ["-n", 2, "--temperature", "0.9", "--max-tokens", 12, "--draft", pair().draft, "--num-draft-tokens", 5]
    assert run(command(*options)) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{PROMPT}\nsample 1 of 2")
    assert captured.out.index("sample 1 of 2") < captured.out.index("sample 2 of 2") and "~~" in captured.out
    assert "24 tokens in " in captured.err and "drafted and accepted" in captured.err
    assert run(command(*options, "--quiet")) == 0
    assert capsys.readouterr() == (captured.out.removeprefix(f"{PROMPT}\n"), "")


def test_prompt_is_dimmed_where_there_is_colour_and_in_a_pipe_only_by_request(expected, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    words = command("--max-tokens", 24, "--draft", pair().draft, "--num-draft-tokens", 5)
    assert run([*words, "--color", "always"]) == 0
    assert capsys.readouterr().out.startswith(f"\x1b[2m{PROMPT}\x1b[0m\x1b[32m")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run([*words, "--color", "never"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(PROMPT) and "~~" in out and "\x1b" not in out
    monkeypatch.delenv("FORCE_COLOR")
    assert run(words) == 0
    assert capsys.readouterr() == (f"{expected.text}\n", "")


def test_rejected_tokens_are_in_brackets_or_struck_through(expected, capsys):
    words = command("--max-tokens", 24, "--draft", pair().draft, "--num-draft-tokens", 5, "--show-rejected")
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "[-" in out and re.sub(r"\[-.*?-\]", "", out) == f"{expected.text}\n"
    assert run([*words, "--color", "always"]) == 0
    captured = capsys.readouterr()
    assert "\x1b[2;9;31m" in captured.out and "\x1b[2;9;31mdrafted and rejected" in captured.err


@pytest.mark.parametrize(("pieces", "waits"), [(("a", "b"), True), (("a\n",), False), ((), False)])
def test_warnings_wait_for_the_end_of_a_line_and_name_options(pieces, waits, capsys):
    open_notes(quiet=False, log_level=None)
    for printer in (AsText(sys.stdout), SourcePrinter(console=open_console())):
        for piece in pieces:
            printer.put(piece, Source.DRAFTED)
        logging.getLogger("paceline").warning("lower num_draft_tokens, take another drafter, or none")
        said = "paceline: warning: lower --num-draft-tokens, take another drafter, or none\n"
        assert capsys.readouterr().err == ("" if waits else said)
        printer.end()
        assert capsys.readouterr().err == (said if waits else "")


def test_error_while_a_line_is_open_begins_a_new_one(capsys, monkeypatch):
    steps = []

    def fails(self, launch=Runner.launch):
        steps.append(1)
        if len(steps) == 4:
            logging.getLogger("paceline").warning("mind")
            raise ValueError("no more")
        return launch(self)

    monkeypatch.setattr(Runner, "launch", fails)
    assert run(command("--max-tokens", 24)) == 2
    captured = capsys.readouterr()
    assert captured.out.endswith("\n") and captured.err == "paceline: warning: mind\npaceline: no more\n"


def test_output_file_holds_what_would_be_printed(tmp_path, expected, capsys):
    output = tmp_path / "text.txt"
    assert run(command("--max-tokens", 24, "--output", output)) == 0
    assert output.read_text(encoding="utf-8") == expected.text + "\n"
    assert run(command("--max-tokens", 24, "--output", output, "--overwrite", "--json")) == 0
    assert json.loads(output.read_text())["text"] == expected.text
    assert capsys.readouterr() == ("", "")


def test_logprobs_are_in_the_json(capsys):
    options = ["--json", "--logprobs", 2, "--max-tokens", 3, "--temperature", "0.5", "--top-k", 1]
    assert run(command(*options)) == 0
    chosen = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["logprobs"]
    assert len(chosen) == 3 and all(len(one["top_raw"]) == 2 and one["processed"] == 0 for one in chosen)
    assert all(one["raw"] == pytest.approx(one["top_raw"][0][1]) for one in chosen), "the likeliest was taken"


def test_stats_explain_themselves_on_standard_error(capsys):
    assert run(command("--stats", "--max-tokens", 24, "--drafter", "ngram", "--num-draft-tokens", 5, "--quiet")) == 0
    captured = capsys.readouterr()
    said = " ".join(captured.err.split())
    for words in ("24 in", "= tokens / target steps; 1.00 is plain decoding", "by position", "no n-gram match"):
        assert words in said
    assert re.search(r"time prefill \S+ s, draft \S+ s, score \S+ s, decide \S+ s, rest \S+ s", said)
    assert "tokens/step" not in captured.out


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    return checkpoints.chatty(tmp_path_factory.mktemp("chat") / "target")


CHATS = {
    "text": (["hello"], [{"role": "user", "content": "hello"}]),
    "system": (
        ["--system", "be brief", "hello"],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
    ),
    "messages": (['[{"role": "user", "content": "one"}]'], [{"role": "user", "content": "one"}]),
    "a list that is no chat": (["[1, 2]"], [{"role": "user", "content": "[1, 2]"}]),
}


@pytest.mark.parametrize("case", CHATS)
@pytest.mark.parametrize("in_file", [False, True])
def test_chat_prompts_use_the_chat_template(case, in_file, chatty, tmp_path, capsys):
    words, messages = CHATS[case]
    expected = generate(load(chatty), [messages], SamplingParams(max_tokens=8, temperature=0.0))[0]
    if in_file:
        objects = {"messages": json.loads(words[-1])} if case == "messages" else {"prompt": words[-1]}
        (tmp_path / "p.jsonl").write_text(json.dumps(objects))
        words = [*words[:-1], "--prompt-file", str(tmp_path / "p.jsonl"), "--output", "-"]
    assert run(["generate", "--model", str(chatty), "--chat", "--max-tokens", "8", "--json", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["samples"][0] if in_file else printed)["tokens"] == list(expected.token_ids)


def test_text_that_looks_like_messages_stays_text_without_chat(chatty, capsys):
    prompt = '[{"role": "user", "content": "one"}]'
    assert run(["generate", "--model", str(chatty), "--max-tokens", "4", "--json", prompt]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == load(chatty).tokenizer.encode(prompt)


def test_configuration_of_vllm_is_a_drafter(expected, capsys):
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3})
    assert run(command("--max-tokens", 24, "--drafter", config, "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["text"] == expected.text and len(printed["stats"]["drafted"]) == 2


def test_log_level_filters_messages(capsys):
    for level, seen_results in (("warning", True), ("error", False)):
        assert run(command("--max-tokens", 2, "--log-level", level)) == 0
        logging.getLogger("paceline").warning("something to %s", "know")
        assert capsys.readouterr().err == ("paceline: warning: something to know\n" if seen_results else "")
    assert run(command("--max-tokens", 2, "-q")) == 0
    logging.getLogger("paceline").warning("something")
    assert capsys.readouterr().err == ""


def test_version_is_printed(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"paceline {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["demo", "--help"], ["generate", "-h"], ["score", "-h"], ["inspect", "-h"]]
)
def test_help_teaches_by_examples(arguments, capsys):
    assert run(arguments) == 0
    name = arguments[0] if arguments and not arguments[0].startswith("-") else "demo"
    out = capsys.readouterr().out
    assert f"\n paceline {name}" in out and "Exit codes: 0 done; 1 " in out


def test_help_loads_neither_torch_nor_transformers():
    code = (
        "import sys, paceline.cli; paceline.cli.run(['generate', '--help']); "
        "print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_shells_complete_commands_and_names(tmp_path, capsys):
    """Through the script that the shell runs; names come from the registries, without torch."""
    (tmp_path / "paceline").write_text(f'#!/bin/sh\nexec {sys.executable} -m paceline.cli "$@"\n')
    (tmp_path / "paceline").chmod(0o755)
    assert run(["--show-completion"]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for words, expected in (("paceline ins", "inspect"), ("paceline generate --verifier cou", "coupled")):
        code = f"source {tmp_path}/completion; COMP_WORDS=({words}); COMP_CWORD={words.count(' ')}; _paceline"
        code += '; echo "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True)
        assert done.stdout.split() == [expected], done.stderr


def test_closed_pipe_ends_the_command_quietly():
    words = [sys.executable, "-m", "paceline.cli", *command("--max-tokens", 400, "--quiet", "--ignore-eos")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(timeout=60) == 1 and process.stderr.read() == b""
    process.stderr.close()


def test_console_script_exits_with_the_code():
    done = subprocess.run([sys.executable, "-m", "paceline.cli", "generate", "x"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_dtype_device_and_threads_reach_the_model(monkeypatch):
    seen = []

    def loading(path, **options):
        seen.append(options)
        return load(path, dtype=options["dtype"])

    monkeypatch.setattr("paceline.api.load", loading)
    assert run(command("--dtype", "float32", "--device", "cpu", "--threads", 1, "--max-tokens", 2)) == 0
    assert run(command("--max-tokens", 2)) == 0
    names = ("dtype", "device", "threads", "revision", "trust_remote_code")
    assert [seen[0][name] for name in names] == ["float32", "cpu", 1, None, False]
    assert [seen[1][name] for name in names] == [None, None, None, None, False]
