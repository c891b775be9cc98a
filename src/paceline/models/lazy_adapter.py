"""The modules of models/adapter, each imported when it is first used: ``lazy_adapter.adapt.adapt(model)``.

Native models need neither them nor transformers' modelling code, which takes longer to import than all else together.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.models.adapter import adapt as adapt
    from paceline.models.adapter import files as files
    from paceline.models.adapter import lm as lm
    from paceline.models.adapter import meta as meta
    from paceline.models.adapter import support as support


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"paceline.models.adapter.{name}")
