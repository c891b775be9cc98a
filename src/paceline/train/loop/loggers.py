"""Where the metrics of a run are written: JSON lines always, other services through the extra ``train-loggers``."""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

from paceline.core.registry import Registry
from paceline.text.valid_json import to_json
from paceline.train.files import write_atomic

Number: TypeAlias = float | list[float] | None
LOG_FILE = "log.jsonl"


class Logger(Protocol):
    """Takes the metrics of a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


LOGGERS = Registry(
    "logger",
    {
        "tensorboard": "paceline.train.loop.loggers:TensorBoard",
        "wandb": "paceline.train.loop.loggers:WeightsAndBiases",
        "trackio": "paceline.train.loop.loggers:Trackio",
    },
)


@final
class JsonLines:
    """One object per line, with its step. A run resumed from ``step`` replaces the lines of later steps."""

    def __init__(self, *, folder: Path) -> None:
        self.path = folder / LOG_FILE

    def begin(self, step: int) -> None:
        """Delete the lines of steps after ``step``, and an incomplete last line."""
        if not self.path.exists():
            return
        lines = [line for line in self.path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
        write_atomic(self.path, "".join(f"{line}\n" for line in lines))

    def log(self, step: int, values: Mapping[str, Number]) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_json({"step": step, **values}) + "\n")


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")  # an incomplete line


@final
class TensorBoard:
    """Event files in ``folder``/tensorboard."""

    def __init__(self, *, folder: Path, name: str, config: Mapping[str, object]) -> None:
        _import("tensorboard")
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(log_dir=str(folder / "tensorboard"))
        self._writer.add_text("config", f"```json\n{json.dumps(config, indent=1)}\n```")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class _Service:
    """A run of a package with ``init``, ``log`` and ``finish``."""

    def __init__(self, package: str, *, name: str, config: Mapping[str, object], **options: str) -> None:
        self._module: Any = _import(package)
        self._module.init(project="paceline", name=name, config=dict(config), resume="allow", **options)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One record."""
        self._module.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._module.finish()


@final
class WeightsAndBiases(_Service):
    """A run in ``folder``/wandb; offline if WANDB_MODE says so, to be uploaded by ``wandb sync``."""

    def __init__(self, *, folder: Path, name: str, config: Mapping[str, object]) -> None:
        super().__init__("wandb", name=name, config=config, id=name, dir=str(folder))


@final
class Trackio(_Service):
    """A run in trackio's own local store."""

    def __init__(self, *, folder: Path, name: str, config: Mapping[str, object]) -> None:
        super().__init__("trackio", name=name, config=config)


def open_loggers(names: Sequence[str], *, folder: Path, name: str, config: Mapping[str, object]) -> list[Logger]:
    """The loggers ``names`` of LOGGERS. Raises ValueError for one whose package is missing."""
    return [LOGGERS.find(logger)(folder=folder, name=name, config=config) for logger in names]


def _import(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ValueError(
            f"loggers: {package} is not installed ({error}); pip install 'paceline[train-loggers]', or leave it out"
        ) from error
