"""Paceline: lossless acceleration of autoregressive transformers by speculative decoding.

The names of ``paceline.api`` are here too, loaded at first use: ``paceline.load``, ``paceline.generate`` and so on.
"""

import os
import sys
from importlib import import_module

__version__ = "0.1.0"

# After an operation that torch shares out, its threads (GNU OpenMP) wait awake for milliseconds, on cores that the
# kernel's threads need by then. So many turns are some tens of microseconds, enough between operations that follow each
# other. It is read when torch is loaded, and who has asked for anything else gets that.
SPIN_VARIABLE, SPINS = "GOMP_SPINCOUNT", "10000"
if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", SPIN_VARIABLE} & os.environ.keys():
    os.environ[SPIN_VARIABLE] = SPINS


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    api = import_module("paceline.api")
    if name not in api.__all__:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}; it has {', '.join(api.__all__)}")
    return getattr(api, name)
