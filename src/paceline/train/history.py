"""What has happened in a run so far, read from its folder while it goes on, after an interruption, or at its end."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import yaml
from pydantic import ValidationError

from paceline.train.config import TrainConfig
from paceline.train.config_file import describe_errors
from paceline.train.loop.loggers import LOG_FILE
from paceline.train.outcome import trained_parts
from paceline.train.resume_check import CONFIG_FILE, STEPS

Line: TypeAlias = Mapping[str, float | None]
Curve: TypeAlias = tuple[list[int], list[float]]  # steps, values
VALIDATION, LENGTH = "validation.", "tokens_per_step"
HELD_OUT_LOSS = "validation.loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run by its configuration and its log."""

    folder: Path
    config: TrainConfig
    lines: Sequence[Line]

    @property
    def done(self) -> int:
        """The last step that was logged."""
        return int(self.lines[-1]["step"] or 0)

    @property
    def finished(self) -> bool:
        """Whether all steps are done and what they trained is written."""
        written = all((self.folder / part / "config.json").exists() for part in trained_parts(self.config))
        return written and self.done >= self.config.schedule.steps

    @property
    def measured(self) -> list[str]:
        """What validations measured: "prophet.greedy", "prophet.t1" ..., in the order of the log."""
        end = f".{LENGTH}"
        names = (name for line in self.lines for name in line if name.startswith(VALIDATION) and name.endswith(end))
        return list(dict.fromkeys(name.removeprefix(VALIDATION).removesuffix(end) for name in names))

    @property
    def validations(self) -> list[Line]:
        """The lines of validations."""
        return [line for line in self.lines if any(name.startswith(VALIDATION) for name in line)]

    @property
    def lengthened(self) -> list[int]:
        """The steps after which the run was given more of them."""
        return self.curve(STEPS)[0]

    def curve(self, name: str) -> Curve:
        """A metric over the steps that logged a number for it."""
        found = [(int(line["step"] or 0), value) for line in self.lines if (value := line.get(name)) is not None]
        return [step for step, _ in found], [value for _, value in found]

    def positions(self, measured: str) -> list[str]:
        """The names of the acceptance rates of ``measured`` by position of the draft, the first position first."""
        start = f"{VALIDATION}{measured}.position."
        names = {name for line in self.lines for name in line if name.startswith(start)}
        return sorted(names, key=lambda name: int(name.removeprefix(start)))


def read_history(folder: Path) -> History:
    """The run in ``folder``; an incomplete last line of its log is left out.

    Raises ValueError, naming what is missing or broken, for a folder that holds no run.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such directory; give the output of a run")
    for name, what in ((CONFIG_FILE, "which every run begins with"), (LOG_FILE, "which begins at the first log_every")):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no {name}, {what}: give the output of a run that has logged a step")
    lines = _read_lines(folder / LOG_FILE)
    if not lines:
        raise ValueError(f"{folder / LOG_FILE}: no whole line in it yet; the first comes after log_every steps")
    return History(folder=folder, config=_read_config(folder / CONFIG_FILE), lines=lines)


def _read_config(path: Path) -> TrainConfig:
    try:
        return TrainConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise ValueError(f"{path} is no configuration of a run: {'; '.join(describe_errors(error))}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def _read_lines(path: Path) -> list[Line]:
    found: list[Line] = []
    texts = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                raise ValueError("no object with a step")
        except ValueError as error:
            if number == len(texts) and not text.endswith("\n"):
                break  # torn: it is being written, or the process was killed
            raise ValueError(f"{path}, line {number}: {error}; remove that line") from error
        found.append(line)
    return found
