"""Checks that an output folder holds the run that is to be resumed there.

Every setting that decides the weights must be unchanged, but for a larger number of steps; how often something is
validated or saved may change.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from pydantic import ValidationError

from paceline.train.config import TrainConfig
from paceline.train.data.document_list import DOCUMENTS_FILE
from paceline.train.data.manifest import MANIFEST_FILE, Manifest
from paceline.train.loop.checkpoints import complete_folders
from paceline.train.loop.config import ScheduleSection
from paceline.train.loop.loggers import LOG_FILE
from paceline.train.tasks.layer_skip import LayerSkipSection

ADVICE = "restore its former value, give another output, or --fresh, which moves the former run aside"
MAY_CHANGE = {
    "hidden_states",
    "validation",
    "checkpoints",
    "loggers",
    "log_every",
    "output",
    "distributed",
    "device",
    "compile",
    "card",
}
CONFIG_FILE = "config.yaml"
LOCK_FILE = ".lock"  # held while a process trains into the folder
RUN_FILES = ("checkpoints", "best", LOG_FILE, CONFIG_FILE, MANIFEST_FILE, DOCUMENTS_FILE)
STEPS = "schedule.steps"  # may grow; in the log, at the step at which it did


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerRun:
    """What of the run is there already."""

    done: int  # steps, as the last checkpoint has them
    schedule: ScheduleSection


def check_same_run(output: Path, config: TrainConfig, manifest: Manifest, *, required: bool) -> FormerRun | None:
    """What ``output`` holds of this run; None if it holds no checkpoint.

    Raises ValueError if it holds another run, or if a checkpoint is ``required`` and there is none. The run may have
    been shorter: its learning rate then goes on by the longer schedule.
    """
    folders = complete_folders(output / "checkpoints")
    if not folders:
        if required:
            raise ValueError(f"--resume: {output} holds no checkpoint; leave --resume out to start a run there")
        return None
    written = yaml.safe_load((output / CONFIG_FILE).read_text(encoding="utf-8"))
    with suppress(ValidationError):  # fields that are newer than the run have their defaults
        written = TrainConfig.model_validate(written).model_dump(mode="json")
    old = _flatten(written)
    new = _flatten(config.model_dump(mode="json"))
    for name in sorted(old.keys() | new.keys()):
        if name == STEPS and new[name] > old.get(name, new[name]):
            _check_lengthening(output, config.target.layer_skip, old[name], new[name])
        elif name.split(".")[0] not in MAY_CHANGE and old.get(name) != new.get(name):
            raise ValueError(
                f"the run in {output} began with {name}={old.get(name)!r} and now has {new.get(name)!r}: {ADVICE}"
            )
    manifest.check_same(Manifest.from_json((output / MANIFEST_FILE).read_text(encoding="utf-8")))
    schedule = config.schedule.model_copy(update={"steps": old[STEPS]})
    return FormerRun(done=int(max(folders).name), schedule=schedule)


def _check_lengthening(output: Path, section: LayerSkipSection | None, old: int, new: int) -> None:
    """Raise ValueError if more than the learning rate depends on the number of steps."""
    if section is not None and (section.ramp or section.curriculum == "gradual"):
        raise ValueError(
            f"the run in {output} began with {STEPS}={old} and now has {new}: target.layer_skip spreads ramp and a "
            "gradual curriculum over all steps, so it cannot be lengthened; train on in a new run, with another "
            f"output and target.path={output / 'target'}"
        )


def claim(lock: FileLock) -> None:
    """Hold ``lock``, which is in the output folder. Raises ValueError if another process does."""
    folder = Path(lock.lock_file).parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"output={folder}: another process trains into it; wait for it, or give another") from None


def set_aside(output: Path) -> None:
    """Move the files of a run in ``output`` into a numbered folder there."""
    files = [output / name for name in RUN_FILES if (output / name).exists()]
    if not files:
        return
    number = 1
    while (output / f"former-{number}").exists():
        number += 1
    folder = output / f"former-{number}"
    folder.mkdir()
    for file in files:
        file.replace(folder / file.name)


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested fields by their dotted names."""
    if not isinstance(values, dict | list):
        return {prefix: values}
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    flat: dict[str, Any] = {}
    for name, value in pairs:
        flat |= _flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return flat
