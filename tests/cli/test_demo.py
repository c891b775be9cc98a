import re
import sys
from pathlib import Path

import pytest

from paceline.api import load
from paceline.bench.suites import PYTHON_PROMPTS
from paceline.cli import run
from paceline.draft_heads.files import save_head
from paceline.drafters import DRAFTERS
from paceline.models.fingerprint import fingerprint
from tests.api.checkpoints import nothing_in_common, pair
from tests.draft_heads.test_prophet import make

TOKENS = 14
DRAFTED = ["--num-draft-tokens", 5]  # in every step
LINE = r"^{} +\d+ +\d\.\d\d +(\d+% +)?\d\.\d\dx( <1)? .*━"  # of the table


def demo(*arguments, tokens=TOKENS):
    return run(["demo", "--max-tokens", str(tokens), *map(str, arguments)])


def of_pair():
    return ["--target", pair().target, "--draft", pair().draft]


def test_demo_shows_compares_and_times(capsys):
    assert demo(*of_pair(), *DRAFTED) == 0
    captured = capsys.readouterr()
    out = captured.out
    pattern = rf"plainly {TOKENS} tokens in (\d+) steps, drafted {TOKENS} tokens in (\d+) steps: identical"
    [(plain, drafted)] = re.findall(pattern, out)
    assert int(plain) == TOKENS and int(drafted) < 0.7 * TOKENS, "drafting saves steps"
    assert out.startswith("Decodes a prompt with a draft model as you watch, then times every drafter ")
    assert out.splitlines()[0].endswith(": half a minute, or more with large models.")
    for line in ("~~ drafted and accepted", *PYTHON_PROMPTS[0].splitlines(), "All tokens are identical"):
        assert line in out
    assert re.search(r"~+[\^+]", out), "tokens are marked by source"
    for name in ("plain", "ngram", "draft model"):
        assert re.search(LINE.format(name), out, re.MULTILINE), name
    assert out.splitlines()[-1].startswith(("drafting pays here: ", "no drafter is measur", "drafting does not pay"))
    assert "\x1b" not in out, "no colours outside a terminal"
    assert re.search(r"loading PyTorch and the models \.\.\.\nmeasuring, up to \d+ s \.\.\.\n$", captured.err)


def test_broken_drafter_makes_the_demo_fail(capsys, monkeypatch):
    monkeypatch.setitem(DRAFTERS.entries, "model", "tests.cli.broken:Scribbler")
    assert demo(*of_pair(), *DRAFTED) == 1
    out = capsys.readouterr().out
    assert re.search(r"DIFFERENT from token 1\d on", out) and "The tokens differ" in out
    assert "All tokens are identical" not in out


def test_difference_in_the_timed_runs_alone_makes_the_demo_fail(capsys, monkeypatch):
    monkeypatch.setitem(DRAFTERS.entries, "ngram", "tests.cli.broken:ScribblingNgram")
    assert demo(*of_pair(), *DRAFTED) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT" not in out and "The tokens differ" in out


@pytest.mark.slow
def test_difference_in_the_shown_runs_alone_makes_the_demo_fail(capsys, monkeypatch):
    monkeypatch.setitem(DRAFTERS.entries, "model", "tests.cli.broken:LateScribbler")
    assert demo(*of_pair(), *DRAFTED, tokens=60) == 1
    assert re.search(r"DIFFERENT from token 5\d on", capsys.readouterr().out)


@pytest.fixture
def heads(tmp_path):
    """Directories of heads of the pair's target, by their kinds."""
    target = load(pair().target, device="cpu").lm
    kinds = {"early_exit": {"exit_layer": 1}, "prophet": {}, "mtp": {}}
    for kind, sizes in kinds.items():
        head = make(kind, target, **sizes)
        save_head(head, tmp_path / kind, target_name="target", fingerprint=fingerprint(target))
    return {kind: tmp_path / kind for kind in kinds}


def test_heads_of_a_target_are_timed_where_they_are_given(capsys, heads):
    assert demo(*of_pair(), "--head", heads["prophet"]) == 0
    out = capsys.readouterr().out
    assert re.search(LINE.format("prophet"), out, re.MULTILINE) and "early exit" not in out
    assert demo("--target", pair().draft, "--draft", pair().draft, "--head", heads["prophet"]) == 2
    assert "is a head of target" in capsys.readouterr().err


def test_embedded_pair_is_the_default(capsys, monkeypatch, heads):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "demo" / "src"))
    monkeypatch.delitem(sys.modules, "paceline_demo", raising=False)
    import paceline_demo

    assert paceline_demo.target() == Path(paceline_demo.__file__).parent / "target"
    assert paceline_demo.draft() == Path(paceline_demo.__file__).parent / "draft"
    monkeypatch.setattr(paceline_demo, "target", lambda: pair().target)
    monkeypatch.setattr(paceline_demo, "draft", lambda: pair().draft)
    for kind in heads:
        assert getattr(paceline_demo, kind)() == Path(paceline_demo.__file__).parent / kind
        monkeypatch.setattr(paceline_demo, kind, lambda kind=kind: heads[kind])
    assert demo() == 0
    out = capsys.readouterr().out
    assert "All tokens are identical" in out
    for name in ("early exit", "prophet", "mtp"):
        assert re.search(LINE.format(name), out, re.MULTILINE), name


REFUSED = {
    "half a pair": (["--target", "TARGET"], "give both --target and --draft"),
    "no such directory": (["--target", "/nowhere", "--draft", "DRAFT"], "no such model directory: /nowhere"),
    "no threads": (["--target", "TARGET", "--draft", "DRAFT", "--threads", "0"], "--threads 0: give at least 1"),
    "vocabulary": (["--target", "TARGET", "--draft", "OTHER"], "different vocabularies"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_exit_code_two(case, capsys, tmp_path):
    arguments, message = REFUSED[case]
    places = {"TARGET": pair().target, "DRAFT": pair().draft}
    if "OTHER" in arguments:
        places["OTHER"] = nothing_in_common(tmp_path / "other")
    assert demo(*(places.get(word, word) for word in arguments)) == 2
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1] and captured.err.count("\n") <= 2, "loading, and the error"
    assert len(captured.out.splitlines()) <= 2, "what would have happened at most"


def test_missing_demo_package_is_one_line_and_exit_code_two(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "paceline_demo", None)
    assert demo() == 2
    assert "pip install 'paceline[demo]'" in capsys.readouterr().err.splitlines()[-1]
