"""torchao imported without what it says of parts that are not used here; transformers imports it wherever it is."""

import importlib
import importlib.util
import logging
import warnings
from functools import cache
from types import ModuleType


def has_torchao() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("torchao") is not None


@cache
def load_torchao() -> ModuleType:
    """``torchao.quantization``. Raises ImportError where it is not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("transformers.quantizers.auto")  # imports further parts of torchao
            return importlib.import_module("torchao.quantization")
    finally:
        logging.disable(before)
