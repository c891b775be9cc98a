"""The options of the command line: their help and examples, and the table of ``paceline options``."""

import json
import re
import shlex
from dataclasses import fields

import pytest
from cyclopts.exceptions import CycloptsError

from paceline.api import SamplingParams
from paceline.api.params import NOT_YET
from paceline.cli import COMMANDS, app, run
from paceline.cli.app import read_options
from paceline.cli.command import Command
from paceline.cli.options import BIASES, FILTERS, SAMPLING, STOPPING
from paceline.hf.options import DROP_IN, OPTIONS
from tests.cli import snapshots


def options_of_generate():
    """Names of every option with its panel."""
    arguments = app["generate"].assemble_argument_collection(default_parameter=app.default_parameter)
    return {name: one.parameter.group[0] for one in arguments if one.parse for name in one.names}


def test_table_of_options_is_whole_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["options"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    words = set(re.split(r"[\s,]+", printed))
    honoured = [option for option in OPTIONS if option.refusal is None]
    for option in honoured:
        assert {option.name, option.stage, *option.flags, option.field or "-"} <= words
    assert {*DROP_IN, *(repr(value) for one in DROP_IN.values() for value in one.neutral)} <= words
    assert {word for one in DROP_IN.values() for word in re.split(r"[\s,]+", one.reason)} <= words
    snapshots.check("options", printed)


def test_json_says_the_same(capsys):
    assert run(["options", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in printed["options"]] == [option.name for option in OPTIONS]
    assert {one["name"] for one in printed["options"]} == {field.name for field in fields(SamplingParams)}
    for one in printed["options"]:
        refused = one["name"] in NOT_YET
        assert (one["refused"] is not None) == refused
        assert [one["plain"], one["chain"], one["tree"], bool(one["verifiers"])] == [not refused] * 4
    assert set(printed["refused_by_drop_in"]) == set(DROP_IN)
    assert all(one["why"] and None in one["but_for"] for one in printed["refused_by_drop_in"].values())


def test_flags_of_the_table_exist_and_none_is_forgotten():
    known = options_of_generate()
    named = {flag for option in OPTIONS if option.refusal is None for flag in option.flags}
    assert named <= set(known)
    panels = (SAMPLING, STOPPING, BIASES, FILTERS)
    assert {name for name, panel in known.items() if panel in panels} - {"-n"} <= named


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_can_be_parsed(name, tmp_path, monkeypatch):
    for folder in ("MODEL_DIR", "DRAFT_DIR"):  # where only a path can be given, what is missing is refused at once
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    lines = COMMANDS[name].__doc__.partition("Examples:")[2].splitlines()
    lines = [line.strip() for line in lines]
    examples = [line[line.index("paceline ") :] for line in lines if "paceline " in line]
    for example in (line for line in examples if line.startswith(f"paceline {name.split()[0]} ")):
        words = shlex.split(example.partition(" < ")[0].partition(" > ")[0])[1:]
        parsed = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        assert isinstance(parsed, Command), example
    assert name == "bench report" or any(line.startswith(f"paceline {name}") for line in lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name):
    command = app
    for word in name.split():
        command = command[word]
    for one in command.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True):
        if one.parse and one.name.strip("-*"):
            assert one.parameter.help and one.parameter.help.endswith((".", ").", "8000/v1.")), one.name


def test_the_studies_have_moved(capsys):
    assert run(["experiment", "resume", "--exit", "4"]) == 2
    assert "python -m benchmarks resume" in capsys.readouterr().err


def test_the_last_of_repeated_values_counts_and_lists_grow():
    words = [
        "generate",
        "--model",
        "a",
        "--model",
        "b",
        "--stop",
        "x",
        "--stop",
        "-y",
        "--seed",
        "3",
        "--seed",
        "-1",
        "-",
    ]
    with pytest.raises(CycloptsError):  # the dash is passed on by run, not by cyclopts
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    parsed = read_options(words)
    assert (parsed.model.model, parsed.sampling.stop, parsed.sampling.seed) == ("b", ("x", "-y"), -1)
    assert parsed.prompt == "-"


WORDS = {  # words of the command line, and the parameters that they are
    "--typical-p 0.7": dict(typical_p=0.7),
    "--epsilon-cutoff 0.005": dict(epsilon_cutoff=0.005),
    "--eta-cutoff 0.02": dict(eta_cutoff=0.02),
    "--min-p 0.02 --top-p 0.7 --filter-order vllm": dict(min_p=0.02, top_p=0.7, filter_order="vllm"),
    "--logit-bias 70=2.5 --logit-bias 71=-inf": dict(logit_bias={70: 2.5, 71: -float("inf")}),
    "--sequence-bias 70,71=-2 --sequence-bias 72=4": dict(sequence_bias=[[[70, 71], -2.0], [[72], 4.0]]),
    "--allowed-token-id 70 --allowed-token-id 71": dict(allowed_token_ids=[70, 71]),
    "--suppress-token-id 70 --suppress-token-id 71": dict(suppress_tokens=[70, 71]),
    "--begin-suppress-token-id 70": dict(begin_suppress_tokens=[70]),
    "--bad-word def --bad-word x": dict(bad_words=["def", "x"]),
    "--bad-word-ids 70 --bad-word-ids 71,72": dict(bad_words_ids=[[70], [71, 72]]),
    "--repetition-penalty 1.5": dict(repetition_penalty=1.5),
    "--presence-penalty 1.5": dict(presence_penalty=1.5),
    "--frequency-penalty -0.5": dict(frequency_penalty=-0.5),
    "--no-repeat-ngram-size 1": dict(no_repeat_ngram_size=1),
    "--temperature 0.7 --top-k 9 --top-p 0.8 --min-p 0.1": dict(temperature=0.7, top_k=9, top_p=0.8, min_p=0.1),
    "--seed 4 -n 2": dict(seed=4, n=2),
    "--seed -1": dict(seed=None),
    "--max-tokens 11 --min-tokens 2 --ignore-eos": dict(max_tokens=11, min_tokens=2, ignore_eos=True),
    "--stop x --stop -y --stop-token-id 7": dict(stop=("x", "-y"), stop_token_ids=(7,)),
    "--include-stop --keep-special": dict(include_stop_str_in_output=True, skip_special_tokens=False),
    "--logprobs 3 --guidance-scale 2 --negative-prompt x": dict(logprobs=3, guidance_scale=2, negative_prompt="x"),
    "--choice a --choice b": dict(structured_outputs={"choice": ["a", "b"]}),
}


@pytest.mark.parametrize("words", WORDS)
def test_sampling_options_are_the_parameters_of_the_same_name(words):
    parsed = read_options(["generate", "--model", "m", *words.split()])
    own = {"temperature": 0.0, "max_tokens": 128, "seed": 0, **WORDS[words]}
    assert SamplingParams().updated(parsed.sampling.params()) == SamplingParams(**own)
