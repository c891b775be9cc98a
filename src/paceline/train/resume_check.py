"""Whether a folder holds the run that is to go on there. Trains nothing.

What decides which weights come out must be as it was; how often something is measured or kept may change.
"""

from pathlib import Path
from typing import Any

import yaml

from paceline.train.checkpoints import whole_folders
from paceline.train.config import TrainConfig
from paceline.train.data.manifest import MANIFEST_FILE, Manifest

WAY_OUT = "give it back its former value, another output, or --fresh, which sets the former run aside"
FREE = frozenset({"validation", "checkpoints", "loggers", "log_every", "output", "distributed", "device", "compile"})
FREE |= {"card"}
PARTS = ("checkpoints", "best", "log.jsonl", "config.yaml", MANIFEST_FILE)


def check_same_run(output: Path, config: TrainConfig, manifest: Manifest, *, demanded: bool) -> None:
    """Raise ValueError unless ``output`` holds checkpoints of this very run, or none and none is ``demanded``."""
    if not whole_folders(output / "checkpoints"):
        if demanded:
            raise ValueError(f"--resume: {output} holds no checkpoint; leave --resume out to begin there")
        return
    was = _flat(yaml.safe_load((output / "config.yaml").read_text(encoding="utf-8")))
    now = _flat(config.model_dump(mode="json"))
    for name in sorted(was.keys() | now.keys()):
        if name.split(".")[0] not in FREE and was.get(name) != now.get(name):
            raise ValueError(
                f"the run in {output} began with {name}={was.get(name)!r} and now has {now.get(name)!r}: {WAY_OUT}"
            )
    manifest.check_same(Manifest.from_json((output / MANIFEST_FILE).read_text(encoding="utf-8")))


def set_aside(output: Path) -> None:
    """Move what a run left in ``output`` into a folder there that is numbered."""
    parts = [output / name for name in PARTS if (output / name).exists()]
    if not parts:
        return
    number = 1
    while (output / f"former-{number}").exists():
        number += 1
    folder = output / f"former-{number}"
    folder.mkdir()
    for part in parts:
        part.replace(folder / part.name)


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested fields by their dotted names."""
    if isinstance(values, dict):
        pairs = list(values.items())
    elif isinstance(values, list):
        pairs = list(enumerate(values))
    else:
        return {prefix: values}
    found: dict[str, Any] = {}
    for name, value in pairs:
        found |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return found
