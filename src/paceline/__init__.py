"""Paceline: lossless acceleration of autoregressive transformers by speculative decoding.

The names of ``paceline.api`` are here too, loaded at first use: ``paceline.load``, ``paceline.generate`` and so on.
"""

from importlib import import_module

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    api = import_module("paceline.api")
    if name not in api.__all__:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}; it has {', '.join(api.__all__)}")
    return getattr(api, name)
