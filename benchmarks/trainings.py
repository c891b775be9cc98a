"""Runs of ``paceline train`` that a study needs: several at a time, one thread each, and resumed where they stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.study import Progress
from paceline.train.config import TrainConfig
from paceline.train.history import History, read_history

SECONDS = 1.0  # between two looks at the runs
SAID = 2000  # last characters of a run's output that an error shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A run by its name and its configuration, without ``output``."""

    name: str
    config: Mapping[str, Any] = field(hash=False)

    def folder(self, work: Path) -> Path:
        """Where it writes."""
        return work / self.name


def history(training: Training, work: Path) -> History | None:
    """What has happened in its run; None before the first line of its log."""
    try:
        return read_history(training.folder(work))
    except ValueError:
        return None


def finished(training: Training, work: Path) -> bool:
    """Whether all its steps are done and written. Raises ValueError where its folder holds a run of other settings."""
    found = history(training, work)
    if found is None or not found.finished:
        return False
    asked = TrainConfig.model_validate(_whole(training, work))
    if found.config != asked:
        raise ValueError(
            f"{training.folder(work)} holds a run of other settings; give another --work folder, or remove it"
        )
    return True


def train_all(trainings: Sequence[Training], work: Path, say: Progress, *, jobs: int) -> None:
    """Finish all ``trainings`` in folders below ``work``, ``jobs`` of them at a time.

    Stopped by Ctrl-C or SIGTERM, every run writes a checkpoint first. Raises ValueError, with the end of its output,
    for one that fails, and before any begins for one whose folder holds other settings.
    """
    work.mkdir(parents=True, exist_ok=True)
    waiting = [training for training in trainings if not finished(training, work)]
    total, running = len(waiting), dict[Training, subprocess.Popen[bytes]]()
    num_done = 0
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # else it would leave the runs behind
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                training = waiting.pop(0)
                running[training] = _start(training, work)
            time.sleep(SECONDS)
            for training, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[training]
                if process.returncode:
                    said = _output(training, work).read_text(encoding="utf-8", errors="replace")[-SAID:]
                    raise ValueError(f"training {training.name} ended with {process.returncode}: {said}")
                num_done += 1
            say(f"training: {num_done} of {total} runs done; {', '.join(_step(one, work) for one in running)}")
    finally:
        signal.signal(signal.SIGTERM, previous)
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def _whole(training: Training, work: Path) -> dict[str, Any]:
    return {**training.config, "output": str(training.folder(work))}


def _output(training: Training, work: Path) -> Path:
    return work / f"{training.name}.txt"


def _start(training: Training, work: Path) -> subprocess.Popen[bytes]:
    path = work / f"{training.name}.yaml"
    path.write_text(yaml.safe_dump(_whole(training, work), sort_keys=False), encoding="utf-8")
    with _output(training, work).open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "paceline", "train", str(path)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is passed on once: a second signal would end it without a checkpoint
        )


def _step(training: Training, work: Path) -> str:
    found = history(training, work)
    total = training.config["schedule"]["steps"]
    return f"{training.name} {0 if found is None else found.done}/{total}"
