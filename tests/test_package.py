"""What importing the package does to a process: next to nothing."""

import os
import subprocess
import sys

import pytest

from paceline.bench.peers.process import Answering
from paceline.openmp import SPIN_VARIABLE, SPINS

SAYS = f"import os, {{}}; print(os.environ.get({SPIN_VARIABLE!r}))"


def said(modules, **asked):
    kept = {name: value for name, value in os.environ.items() if name not in (SPIN_VARIABLE, "OMP_WAIT_POLICY")}
    words = [sys.executable, "-c", SAYS.format(modules)]
    return subprocess.run(words, env={**kept, **asked}, capture_output=True, text=True, check=True).stdout.strip()


def test_torchs_threads_wait_briefly():
    assert said("paceline") == SPINS
    assert said("paceline, torch") == SPINS


@pytest.mark.parametrize("asked", [{SPIN_VARIABLE: "7"}, {"OMP_WAIT_POLICY": "active"}], ids=["spins", "policy"])
def test_another_setting_of_the_user_is_kept(asked):
    assert said("paceline", **asked) == asked.get(SPIN_VARIABLE, "None")


def test_it_is_too_late_where_torch_is_loaded():
    assert said("torch, paceline") == "None"


def test_other_programs_do_not_inherit_it(monkeypatch):
    program = f"import json, os; input(); print(json.dumps(os.environ.get({SPIN_VARIABLE!r})), flush=True)"
    for value, inherited in ((SPINS, None), ("7", "7")):
        monkeypatch.setenv(SPIN_VARIABLE, value)
        other = Answering("other", [sys.executable, "-c", program], environment={})
        assert other.ask({}) == inherited
        other.close()
