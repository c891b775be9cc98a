"""The Python API: load a model, generate with speculative decoding, score sequences."""

from paceline.api.async_engine import AsyncEngine
from paceline.api.async_streams import AsyncStream, DeadlineError, DrainingError, EngineError, OverloadedError
from paceline.api.build import build_drafter, build_verifier
from paceline.api.embedded import embedded_heads, embedded_pair
from paceline.api.engine import Engine
from paceline.api.generate import generate, stream
from paceline.api.generation_config import from_generation_config
from paceline.api.loading import DTYPES, Loaded, load
from paceline.api.params import SamplingParams
from paceline.api.prompts import EncoderDecoderPrompt
from paceline.api.results import Piece, Result, Source, Statistics, total
from paceline.api.score import Perplexity, PromptScore, Score, TextScore, perplexity, prompt_logprobs, score
from paceline.api.session import Session
from paceline.api.stacked import StackedOutputs, stack_outputs
from paceline.api.streams import Interrupted, Stream
from paceline.engine.outputs import RequestStats

__all__ = [
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
    "Session",
    "Source",
    "StackedOutputs",
    "Statistics",
    "Stream",
    "TextScore",
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
]
