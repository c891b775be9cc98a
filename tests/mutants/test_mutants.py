"""Every mutant dies by an ordinary test. Of the larger families a run of the suite plants one, `make mutants` all."""

import pytest

from tests.mutants import MUTANTS
from tests.mutants.apply import kill

FAMILIES = (
    "api/",
    "constraints/",
    "core/",
    "drafters/",
    "engine/",
    "heads/",
    "models/cpu/",
    "models/fingerprint",
    "verifiers/",
)
FEW = 1  # of each family: a run of a mutant takes ten seconds
BUILT = "models/cpu/kernel/"  # these are compiled first, and take a minute


def cases():
    seen = dict.fromkeys(FAMILIES, 0)
    for mutant in MUTANTS:
        family = next((prefix for prefix in FAMILIES if mutant.file.startswith(prefix)), None)
        late = mutant.file.startswith(BUILT) or (family is not None and seen[family] >= FEW)
        if family is not None and not mutant.file.startswith(BUILT):
            seen[family] += 1
        marks = [pytest.mark.slow] if late else []
        yield pytest.param(mutant, marks=marks, id=mutant.name.replace(" ", "-"))


@pytest.mark.parametrize("mutant", list(cases()))
def test_an_ordinary_test_kills_the_mutant(mutant, tmp_path):
    assert kill(mutant, tmp_path) is not None, f"{mutant.name} survived"
