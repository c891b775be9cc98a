"""Paceline: lossless acceleration of autoregressive transformers by speculative decoding.

The names of ``paceline.api`` are here too: ``paceline.load``, ``paceline.generate`` and so on. They are loaded, and
torch with them, at first use; editors and type checkers find them without.
"""

# ruff: noqa: F403, F405 (one list of names, __all__; what they are is said by paceline.api alone)
from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from paceline.openmp import limit_spinning as _limit_spinning

if TYPE_CHECKING:
    from paceline import api as api
    from paceline import core as core
    from paceline import decode as decode
    from paceline import draft_heads as draft_heads
    from paceline import drafters as drafters
    from paceline import hf as hf
    from paceline import speech as speech
    from paceline import train as train
    from paceline import verifiers as verifiers
    from paceline.api import *
    from paceline.speech import *

__version__ = "0.1.0"
__all__ = [  # those of paceline.api and paceline.speech, which are not loaded to list them
    "DTYPES",
    "AsyncEngine",
    "AsyncStream",
    "DeadlineError",
    "DrainingError",
    "EncoderDecoderPrompt",
    "Engine",
    "EngineError",
    "Interrupted",
    "Loaded",
    "OverloadedError",
    "Perplexity",
    "Piece",
    "PromptScore",
    "RequestStats",
    "Result",
    "SamplingParams",
    "Score",
    "Segment",
    "Session",
    "Source",
    "SpeechOptions",
    "StackedOutputs",
    "Statistics",
    "Stream",
    "TextScore",
    "Transcriber",
    "Transcript",
    "TranscriptionInterrupted",
    "build_drafter",
    "build_verifier",
    "embedded_heads",
    "embedded_pair",
    "from_generation_config",
    "generate",
    "load",
    "perplexity",
    "prompt_logprobs",
    "score",
    "stack_outputs",
    "stream",
    "total",
    "transcribe",
]

_SUBMODULES = ("api", "core", "decode", "draft_heads", "drafters", "hf", "speech", "train", "verifiers")
_SPEECH = ("Segment", "SpeechOptions", "Transcriber", "Transcript", "TranscriptionInterrupted", "transcribe")

_limit_spinning()

if not TYPE_CHECKING:  # a type checker would take it for every name, misspelt ones too

    def __getattr__(name: str) -> object:
        if name in __all__:
            return getattr(_import_module("paceline.speech" if name in _SPEECH else "paceline.api"), name)
        if name in _SUBMODULES:
            return _import_module(f"paceline.{name}")
        known = "" if name.startswith("_") else f"; it has {', '.join(__all__)}"
        raise AttributeError(f"module 'paceline' has no attribute {name!r}{known}")


def __dir__() -> list[str]:
    return [*__all__, *_SUBMODULES]
