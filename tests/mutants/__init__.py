"""Known ways to break the shipped code, as patches that are applied at run time and must not survive.

An ordinary test has to fail on each: one that checks a property of the code and was not written for the mutant.
The mutants are in the tables beside this file, ``*.diff``.
"""

from pathlib import Path

from tests.mutants.mutant import read

MUTANTS = tuple(mutant for file in sorted(Path(__file__).parent.glob("*.diff")) for mutant in read(file))
