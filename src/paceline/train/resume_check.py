"""Checks that an output folder holds the run that is to be resumed there.

Every setting that decides the weights must be unchanged; how often something is validated or saved may change.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from paceline.train.config import TrainConfig
from paceline.train.data.manifest import MANIFEST_FILE, Manifest
from paceline.train.loop.checkpoints import complete_folders

ADVICE = "restore its former value, give another output, or --fresh, which moves the former run aside"
MAY_CHANGE = {"validation", "checkpoints", "loggers", "log_every", "output", "distributed", "device", "compile", "card"}
RUN_FILES = ("checkpoints", "best", "log.jsonl", "config.yaml", MANIFEST_FILE)


def check_same_run(output: Path, config: TrainConfig, manifest: Manifest, *, required: bool) -> None:
    """Raise ValueError unless ``output`` holds checkpoints of this run, or none and none is ``required``."""
    if not complete_folders(output / "checkpoints"):
        if required:
            raise ValueError(f"--resume: {output} holds no checkpoint; leave --resume out to start a run there")
        return
    written = yaml.safe_load((output / "config.yaml").read_text(encoding="utf-8"))
    with suppress(ValidationError):  # fields that are newer than the run have their defaults
        written = TrainConfig.model_validate(written).model_dump(mode="json")
    old = _flatten(written)
    new = _flatten(config.model_dump(mode="json"))
    for name in sorted(old.keys() | new.keys()):
        if name.split(".")[0] not in MAY_CHANGE and old.get(name) != new.get(name):
            raise ValueError(
                f"the run in {output} began with {name}={old.get(name)!r} and now has {new.get(name)!r}: {ADVICE}"
            )
    manifest.check_same(Manifest.from_json((output / MANIFEST_FILE).read_text(encoding="utf-8")))


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
