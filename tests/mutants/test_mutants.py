"""Every mutant dies by an ordinary test."""

import pytest

from tests.mutants import MUTANTS
from tests.mutants.apply import kill


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_an_ordinary_test_kills_the_mutant(mutant, tmp_path):
    assert kill(mutant, tmp_path) is not None, f"{mutant.name} survived"
