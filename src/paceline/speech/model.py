"""A Whisper checkpoint that is loaded: its decoder, its features and its tokens; and one request of a window to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from paceline.api.engine import Engine
from paceline.api.loading import Loaded, load
from paceline.api.params import SamplingParams
from paceline.api.prompts import EncoderDecoderPrompt
from paceline.api.results import Result
from paceline.api.streams import Stream
from paceline.core.constraint import Constraint
from paceline.models import hub
from paceline.models.directory import is_hub_id
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.speech.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from paceline.speech.features import Features
from paceline.speech.statistics import token_logprob
from paceline.speech.timestamps import Timestamps
from paceline.speech.windows import FEATURES, Answer, Ask, WindowError

SpeechModelLike: TypeAlias = str | Path | Loaded
PREVIOUS = "<|startofprev|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechModel:
    """What a transcription needs of a checkpoint."""

    loaded: Loaded
    checkpoint: Checkpoint
    features: Features

    def encoder_seconds(self, ask: Ask) -> float:
        """Seconds in which the window of ``ask`` was encoded."""
        assert isinstance(self.loaded.lm, EncoderDecoderLM)
        return self.loaded.lm.encoding_seconds(ask.context)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens`` without timestamps and special tokens, as transformers' tokenizer decodes it."""
        assert self.loaded.tokenizer is not None
        # Special tokens and timestamps have the ids from end-of-text on.
        text = self.loaded.tokenizer.inner.decode([token for token in tokens if token < self.checkpoint.eos])
        assert isinstance(text, str)
        return text

    def prompt(self, text: str | None) -> tuple[int, ...]:
        """Token ids of a text that stands before what is said. Raises CheckpointError for special tokens in it."""
        if text is None:
            return ()
        assert self.loaded.tokenizer is not None
        tokens = self.loaded.tokenizer.encode(f" {text.strip()}", special=False)
        found = [token for token in tokens if token >= self.checkpoint.eos]
        if found:
            name = self.loaded.tokenizer.inner.convert_ids_to_tokens(found[0])
            raise CheckpointError(f"prompt: the special token {name} in it; give plain text")
        previous = self.checkpoint.previous
        if previous is None:
            raise CheckpointError(f"prompt: {self.checkpoint.name} has no token {PREVIOUS} to put before it")
        return (previous, *tokens)


def speech_model(model: SpeechModelLike) -> SpeechModel:
    """The checkpoint of a directory, a Hub id, or what ``paceline.load`` made of one of these.

    Raises what ``load`` raises, and CheckpointError for a model that reads no sound, or lacks files for it.
    """
    loaded = model if isinstance(model, Loaded) else load(model)
    reads = loaded.lm.context_inputs.get(FEATURES)
    if reads is None or "max_source_positions" not in loaded.config:
        raise CheckpointError(
            f"{loaded.name} reads {'text' if reads is None else 'other features'}, not sound: give a Whisper checkpoint"
        )
    directory = hub.fetch(loaded.name, None) if is_hub_id(loaded.name) else Path(loaded.name)
    if loaded.tokenizer is None:
        raise CheckpointError(f"{loaded.name} has no tokenizer: put tokenizer.json beside config.json")
    config = cast("Mapping[str, int]", loaded.config)
    checkpoint = read_checkpoint(directory, loaded.config, name=loaded.name, vocab_size=loaded.lm.vocab_size)
    features = Features(directory, mels=config["num_mel_bins"], frames=checkpoint.frames)
    return SpeechModel(loaded=loaded, checkpoint=checkpoint, features=features)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """What an engine is given for an ``Ask``."""

    prompt: EncoderDecoderPrompt
    params: SamplingParams
    constraints: tuple[Constraint, ...] = ()
    keep_scores: bool = False


def request_of(ask: Ask, checkpoint: Checkpoint) -> WindowRequest:
    """The request for what a window asks."""
    prompt = EncoderDecoderPrompt(inputs=ask.context, prompt=ask.prompt)
    if ask.probes:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0, detokenize=False)
        return WindowRequest(prompt=prompt, params=params, keep_scores=True)
    params = SamplingParams(
        temperature=ask.temperature,
        top_k=checkpoint.top_k,
        top_p=checkpoint.top_p,
        seed=ask.seed,
        max_tokens=ask.max_tokens,
        suppress_tokens=checkpoint.suppressed,
        begin_suppress_tokens=checkpoint.suppressed_first,
        logprobs=0 if ask.scored else None,
        detokenize=False,
    )
    rules = (Timestamps(checkpoint),) if ask.timestamps else ()
    return WindowRequest(prompt=prompt, params=params, constraints=rules, keep_scores=ask.scored)


def submit(engine: Engine, ask: Ask, checkpoint: Checkpoint) -> Stream:
    """Queue what a window asks for."""
    asked = request_of(ask, checkpoint)
    return engine.submit(asked.prompt, asked.params, constraints=asked.constraints, keep_scores=asked.keep_scores)


def answer_of(result: Result, ask: Ask) -> Answer:
    """What a window is told of a request that has ended. Raises WindowError for one that failed."""
    if result.error is not None:
        raise WindowError(result.error)
    chosen, logprobs = result.logprobs, None
    if ask.probes:
        assert chosen is not None
        return Answer(tokens=result.token_ids, logits=chosen[0].logits)
    if chosen is not None:
        pairs = [(one.scores, token) for one, token in zip(chosen, result.token_ids, strict=True)]
        logprobs = tuple(token_logprob(scores, token, ask.temperature) for scores, token in pairs if scores is not None)
    return Answer(tokens=result.token_ids, logprobs=logprobs)
