"""How long the threads of torch's operations wait awake: set before torch is loaded, which reads it then."""

import os
import sys

# After an operation that torch shares out, its threads (GNU OpenMP) wait awake for milliseconds, on cores that the
# kernel's threads need by then. So many turns are some tens of microseconds, enough between operations that follow each
# other.
SPIN_VARIABLE, SPINS = "GOMP_SPINCOUNT", "10000"


def limit_spinning() -> None:
    """Let them wait briefly, unless torch is loaded already or the user has asked for anything else."""
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", SPIN_VARIABLE} & os.environ.keys():
        os.environ[SPIN_VARIABLE] = SPINS
