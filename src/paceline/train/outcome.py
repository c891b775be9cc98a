"""What a run writes at its end, and what to type to use it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.api.usage import generate_command, generate_python, transcribe_command, transcribe_python
from paceline.train.config import TrainConfig
from paceline.train.data.config import SoundsSource

TARGET, DRAFT = "target", "draft"


def trained_parts(config: TrainConfig) -> list[str]:
    """The directories in ``config.output`` that the run writes."""
    parts = [TARGET] if config.target.is_trained else []
    parts += [DRAFT] if config.draft is not None else []
    return [*parts, *(head.directory for head in config.heads)]


def target_directory(config: TrainConfig) -> str:
    """The model that drafts are for: the one that the run trains, else the one that it read."""
    return str(config.output / TARGET) if config.target.is_trained else str(config.target.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How one trained directory is used."""

    command: str
    python: str


def usage_of(config: TrainConfig, part: str) -> Usage:
    """How the directory ``part`` of the run is used, with the target where it drafts."""
    target = target_directory(config)
    draft = None if part == TARGET else str(config.output / part)
    if draft is not None and any(isinstance(source, SoundsSource) for source in config.data.sources):
        return Usage(command=transcribe_command(target, draft=draft), python=transcribe_python(target, draft=draft))
    source = config.target.path  # from which a trained target takes its tokenizer
    tokenizer = source is not None and not (Path(source).is_dir() and not any(Path(source).glob("tokenizer*")))
    return Usage(
        command=generate_command(target, draft=draft, tokenizer=tokenizer),
        python=generate_python(target, draft=draft, tokenizer=tokenizer),
    )


def best_part(config: TrainConfig, metrics: Mapping[str, float]) -> str:
    """The directory that drafts best by the greedy mean acceptance length in ``metrics``; a target alone, itself."""
    parts = trained_parts(config)
    return max(parts, key=lambda part: metrics.get(f"validation.{part}.greedy.tokens_per_step", part != TARGET))


def next_command(config: TrainConfig, metrics: Mapping[str, float]) -> str:
    """The command to use what was trained."""
    return usage_of(config, best_part(config, metrics)).command
