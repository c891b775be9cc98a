"""The package speculators, whose heads are the reference, where it is installed or SPECULATORS_PACKAGE names it.

``pip install --no-deps --target DIR speculators==0.9.0`` and SPECULATORS_PACKAGE=DIR make it available. What it imports
for training and serving is replaced by empty modules, for nothing of that is used.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types

import pytest

STUBS = ("openai", "datasets", "hs_connectors", "loguru", "vllm", "trackio", "wandb", "deepspeed", "lightning")
VARIABLE = "SPECULATORS_PACKAGE"


class Stub(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return logging.getLogger(self.__name__) if name == "logger" else type(name, (), {})


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        first = name.partition(".")[0]
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if first in STUBS else None

    def create_module(self, spec):
        made = Stub(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module):
        pass


def load_module(name):
    """``speculators.models.NAME``; skips the test where the package is not there."""
    folder = os.environ.get(VARIABLE)
    if folder and folder not in sys.path:
        sys.path.append(folder)
    if importlib.util.find_spec("speculators") is None:
        pytest.skip(f"speculators is not installed: {VARIABLE} names the directory that it was installed into")
    if not any(isinstance(one, StubFinder) for one in sys.meta_path):
        sys.meta_path.append(StubFinder())
    return importlib.import_module(f"speculators.models.{name}")
