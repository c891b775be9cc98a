"""Drafters in files of users: FILE.py:NAME."""

import re
import sys

import pytest

import paceline
from paceline.api.build import build_drafter
from paceline.api.drafter_files import read_drafter_file
from paceline.api.loading import load
from paceline.drafters.host import HostDrafting
from paceline.drafters.ngram import NgramDrafter
from tests.api.checkpoints import pair
from tests.api.drafter_file import written

PROMPT = [5, 9, 2, 7]
GREEDY = paceline.SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


@pytest.fixture
def folder(tmp_path):
    with written(tmp_path):
        yield tmp_path


def test_class_instance_and_function_are_found_in_a_file(target, folder):
    own = folder / "own.py"
    for text, period in (("Repeat", 3), ("Repeat:period=4,name=a", 4), ("Needs:size=6", 6), ("ready", 5)):
        drafter = build_drafter(f"{own}:{text}", target=target)
        assert isinstance(drafter, HostDrafting) and drafter.drafter.period == period
    drafter = build_drafter(f"{own}:for_target:size=4", target=target)
    assert isinstance(drafter, NgramDrafter) and (drafter.max_ngram, drafter.min_ngram) == (4, target.lm.num_layers)
    assert str(folder) not in sys.path
    plain, drafted = (paceline.generate(target, [PROMPT], GREEDY, drafter=d)[0] for d in (None, f"{own}:Repeat"))
    assert drafted.token_ids == plain.token_ids and sum(drafted.stats.drafted) > 0


def test_file_is_imported_again_only_after_a_change(folder):
    file = folder / "one.py"
    file.write_text("from paceline.drafters.ngram import NgramDrafter\nmade = NgramDrafter()\n")
    first = read_drafter_file(f"{file}:made").found
    assert read_drafter_file(f"{file}:made").found is first
    file.write_text("from paceline.drafters.ngram import NgramDrafter\nmade = NgramDrafter(max_ngram=5)\n")
    assert read_drafter_file(f"{file}:made").found.max_ngram == 5


NAMES = "in it are Repeat, Needs, Incomplete, ready"
REFUSED = {
    "nowhere.py:Repeat": "nowhere.py:Repeat': no such file: ",
    "own.py": f"own.py:NAME; {NAMES}",
    "own.py:": f"own.py:NAME; {NAMES}",
    "own.py:Reapeat": f"no 'Reapeat' in .*own.py, did you mean Repeat; {NAMES}",
    "own.py:xyz": f"no 'xyz' in .*own.py; {NAMES}",
    "own.py:number": f"number is of type int and no drafter; {NAMES}",
    "own.py:Other": f"Other is the class Other and no drafter; {NAMES}",
    "own.py:Incomplete": "Incomplete is a class that does not implement propose",
    "own.py:Needs": r"own.py:Needs' needs size: give a Needs instead of the name, or \S*own.py:Needs:size=VALUE",
    "own.py:Repeat:length=2": "own.py:Repeat' has no option 'length'; known: period=3, name=x",
    "own.py:Repeat:period=x": "period=x of the drafter '.*own.py:Repeat': give a whole number",
    "own.py:Repeat:": "'' is not an option; write NAME:option=value",
    "own.py:for_target:target=x": "for_target' has no option 'target'; known: size=2",
    "own.py:ready:period=2": "own.py:ready is an instance, which has its options; give .*own.py:ready alone",
    "own.py:Repeat:period=0": "own.py:Repeat' cannot be made: line 12: ValueError: period=0: give at least 1$",
    "own.py:nothing": "own.py:nothing': what it returned is of type NoneType; return a Drafter or HostDrafter",
    "raising.py:X": "raising.py cannot be imported: line 2: ZeroDivisionError: division by zero$",
    "leaving.py:X": "leaving.py cannot be imported: line 1: SystemExit: 3$",
    "broken.py:X": r"broken.py cannot be imported: line 1: SyntaxError: '\(' was never closed$",
    "lacking.py:X": "lacking.py cannot be imported: line 1: ModuleNotFoundError: No module named 'nowhere_at_all'$",
    "empty.py:X": "no 'X' in .*empty.py; there is no drafter in it; give FILE.py:NAME, where NAME is a class that",
}
FILES = {
    "raising.py": "zero = 0\none = 1 / zero\n",
    "leaving.py": "raise SystemExit(3)\n",
    "broken.py": "x = (\n",
    "lacking.py": "import nowhere_at_all\n",
    "empty.py": "",
}


@pytest.mark.parametrize("text", REFUSED)
def test_file_without_a_usable_drafter_is_refused_in_one_line(text, target, folder):
    for name, code in FILES.items():
        (folder / name).write_text(code)
    with pytest.raises(ValueError, match=REFUSED[text]) as caught:
        build_drafter(f"{folder}/{text}", target=target)
    assert "\n" not in str(caught.value)


def test_class_of_a_directory_with_the_suffix_is_a_model(target, tmp_path):
    with pytest.raises(ValueError, match=re.escape("no_model.py")):
        (tmp_path / "no_model.py").mkdir()
        build_drafter(str(tmp_path / "no_model.py"), target=target)
