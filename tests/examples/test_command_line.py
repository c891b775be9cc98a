"""The command line with other people's packages installed: the good ones work, the broken ones hurt nobody else."""

import json
import os
import subprocess
import sys

import pytest

from paceline.cli import EXIT_BAD_INPUT, EXIT_OK, run
from paceline.drafters import DRAFTERS
from tests.api.checkpoints import pair
from tests.examples.installed import put_example, put_metadata


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The example, a package that fails to import, and one that takes a built-in name."""
    folder = tmp_path_factory.mktemp("site")
    put_example(folder)
    put_metadata(folder, "broken-drafts", "0.3", {"paceline.drafters": {"broken": "broken_drafts:Drafter"}})
    (folder / "broken_drafts.py").write_text("import not_there_at_all\n")
    put_metadata(folder, "greedy-drafts", "0.4", {"paceline.drafters": {"ngram": "greedy_drafts:Drafter"}})
    return folder


@pytest.fixture
def installed(site, monkeypatch):
    """The same in this process."""
    monkeypatch.syspath_prepend(str(site))
    DRAFTERS.refresh()
    yield
    monkeypatch.undo()
    DRAFTERS.refresh()


def apart(site, *arguments):
    """Run ``paceline`` in a process of its own; (exit code, standard output, standard error)."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "paceline.cli", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def generating(*options):
    return ["generate", "--model", str(pair().target), "--max-tokens", "12", *options, "def add("]


def test_help_needs_no_package_to_be_whole(site):
    code, out, error = apart(site, "generate", "--help")
    assert code == EXIT_OK and "--drafter" in out and not error


@pytest.mark.slow
def test_a_drafter_and_a_verifier_of_another_package_work_by_name_beside_broken_ones(site, capsys):
    code, out, error = apart(site, *generating("--drafter", "bigram", "--verifier", "first_token", "--json"))
    assert code == EXIT_OK, error
    assert run(generating("--json")) == EXIT_OK
    assert json.loads(out)["tokens"] == json.loads(capsys.readouterr().out)["tokens"]


BROKEN = {
    "broken": (
        "drafter 'broken' of broken-drafts 0.3 (broken_drafts:Drafter) cannot be imported: ModuleNotFoundError: "
        "No module named 'not_there_at_all'; repair the package or uninstall it"
    ),
    "ngram": (
        "the drafter name 'ngram' is claimed by paceline (paceline.drafters.ngram:NgramDrafter) and by greedy-drafts "
        "0.4 (greedy_drafts:Drafter); uninstall all but one of them"
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_cannot_be_used_is_named_when_its_drafter_is_asked_for(installed, capsys, name):
    assert run(generating("--drafter", name)) == EXIT_BAD_INPUT
    captured = capsys.readouterr()
    assert not captured.out and BROKEN[name] in captured.err
    assert run(generating("--drafter", "none")) == EXIT_OK
