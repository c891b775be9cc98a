"""Every mutant dies by an ordinary test. A run of the suite plants one in each of some folders, `make mutants` all."""

import re

import pytest

from tests.mutants import MUTANTS
from tests.mutants.apply import kill

FOLDERS = ("verifiers",)  # that a run of the suite plants mutants in


def soon():
    """The first mutant of each, and rather one whose test is named, since a whole file takes up to a minute."""
    found = {}
    for mutant in MUTANTS:
        if ".h:" not in mutant.anchor:  # a kernel is compiled first, which takes a minute
            family = re.split(r"[.:/]", mutant.anchor)[0]
            if family in FOLDERS:
                found.setdefault((family, "::" in mutant.tests[0]), mutant)
    return [mutant for (family, named), mutant in found.items() if named or (family, True) not in found]


def cases():
    early = soon()
    for mutant in MUTANTS:
        late = not any(mutant is one for one in early)
        yield pytest.param(mutant, marks=[pytest.mark.slow] if late else [], id=mutant.name.replace(" ", "-"))


@pytest.mark.parametrize("mutant", list(cases()))
def test_an_ordinary_test_kills_the_mutant(mutant, tmp_path):
    assert kill(mutant, tmp_path) is not None, f"{mutant.name} survived"
