"""Every mutant dies by an ordinary test. Of each folder a run of the suite plants one, `make mutants` all."""

import pytest

from tests.mutants import MUTANTS
from tests.mutants.apply import kill

BUILT = "models/cpu/kernel/"  # these are compiled first, and take a minute


def cases():
    """A run of a mutant takes ten seconds: the first of each folder is soon enough."""
    seen = set()
    for mutant in MUTANTS:
        family = mutant.file.split("/")[0]
        late = mutant.file.startswith(BUILT) or family in seen
        if not late:
            seen.add(family)
        yield pytest.param(mutant, marks=[pytest.mark.slow] if late else [], id=mutant.name.replace(" ", "-"))


@pytest.mark.parametrize("mutant", list(cases()))
def test_an_ordinary_test_kills_the_mutant(mutant, tmp_path):
    assert kill(mutant, tmp_path) is not None, f"{mutant.name} survived"
