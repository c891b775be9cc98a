"""The options of the command line: their help and examples, and the table of ``paceline options``."""

import inspect
import json
import shlex
from dataclasses import fields
from importlib import import_module

import pytest
from cyclopts.exceptions import CycloptsError

from paceline.api import SamplingParams
from paceline.api.params import NOT_YET
from paceline.cli import COMMANDS, app, run
from paceline.cli.app import read_options
from paceline.cli.commands import RUNNERS
from paceline.cli.options import BIASES, FILTERS, SAMPLING, STOPPING
from paceline.hf.options import DROP_IN, OPTIONS


def options_of_generate():
    """Names of every option with its panel."""
    arguments = app["generate"].assemble_argument_collection(default_parameter=app.default_parameter)
    return {name: one.parameter.group[0] for one in arguments if one.parse for name in one.names}


def test_table_names_every_option_and_every_refusal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert run(["options"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    for option in OPTIONS:
        rows = [row for row in words if row and row[0] == option.name]
        assert len(rows) == (2 if option.refusal is None else 1), option.name
        if option.refusal is None:
            assert rows[0][2:] == [*(option.flags or "-"), option.field or "-"]
            assert rows[1][1:5] == [option.stage, "yes", "yes", "yes"]
        else:
            assert option.refusal.split()[0] in rows[0]
    for name, refusal in DROP_IN.items():
        assert any(line.startswith(f"{name} ") and refusal.reason.split()[0] in line for line in lines), name


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
def test_examples_in_the_help_can_be_parsed(name):
    lines = COMMANDS[name].__doc__.partition("Examples:")[2].splitlines()
    lines = [line.strip() for line in lines]
    examples = [line[line.index("paceline ") :] for line in lines if "paceline " in line]
    for example in (line for line in examples if line.startswith(f"paceline {name.split()[0]} ")):
        words = shlex.split(example.partition(" < ")[0].partition(" > ")[0])[1:]
        parsed = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        assert type(parsed) in RUNNERS, example
    assert name == "bench report" or any(line.startswith(f"paceline {name}") for line in lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name):
    command = app
    for word in name.split():
        command = command[word]
    for one in command.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True):
        if one.parse and one.name.strip("-*"):
            assert one.parameter.help and one.parameter.help.endswith((".", ").", "8000/v1.")), one.name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_function_that_takes_its_options(name):
    module, _, function = RUNNERS[COMMANDS[name]].partition(":")
    (parameter,) = inspect.signature(getattr(import_module(module), function)).parameters.values()
    assert parameter.annotation is COMMANDS[name]


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
