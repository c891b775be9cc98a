"""torchao imported without what it says of parts that are not used here, and only where something needs it."""

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType


def has_torchao() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("torchao") is not None


@cache
def load_torchao() -> ModuleType:
    """``torchao.quantization``. Raises ImportError where it is not installed."""
    with _quietly():
        return importlib.import_module("torchao.quantization")


@cache
def load_quantizers() -> None:
    """What transformers' modelling code imports of torchao, wherever it is installed."""
    if has_torchao():
        with _quietly():
            importlib.import_module("transformers.quantizers.auto")


@contextmanager
def _quietly() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
