"""Every mutant dies by an ordinary test. Of each folder a run of the suite plants one, `make mutants` all."""

import re

import pytest

from tests.mutants import MUTANTS
from tests.mutants.apply import kill


def cases():
    """A run of a mutant takes ten seconds: the first of each folder is soon enough."""
    seen = set()
    for mutant in MUTANTS:
        family = re.split(r"[.:/]", mutant.anchor)[0]
        late = ".h:" in mutant.anchor or family in seen  # a kernel is compiled first, which takes a minute
        if not late:
            seen.add(family)
        yield pytest.param(mutant, marks=[pytest.mark.slow] if late else [], id=mutant.name.replace(" ", "-"))


@pytest.mark.parametrize("mutant", list(cases()))
def test_an_ordinary_test_kills_the_mutant(mutant, tmp_path):
    assert kill(mutant, tmp_path) is not None, f"{mutant.name} survived"
