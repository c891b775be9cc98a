"""``paceline options``: the table that is printed, and that every option of the command line is in it."""

import json
from dataclasses import fields

from paceline.api import SamplingParams
from paceline.api.params import NOT_YET
from paceline.cli import app, run
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
            assert rows[1][1:5] == [option.place, "yes", "yes", "yes"]
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
