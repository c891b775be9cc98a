"""Trains every kind of draft head for the embedded target, each for the same time of one core.

The steps of a head follow once from the processor time that one of its steps takes, less what its validations take.
They are kept beside the run, so the same command goes on after an interruption, and its weights are those of an
uninterrupted run. All heads read the same stored hidden states, which the first of them computes. Run as ``python
demo/recipes/zoo.py [--work FOLDER] [--only HEAD ...] [--minutes 40] [--num-prompts 8192]`` from the repository's root.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import yaml

from paceline.train.config import TrainConfig
from paceline.train.config_file import read_train_config
from paceline.train.run import Run

HERE = Path(__file__).parent
TARGET = Path("demo/src/paceline_demo/target")
OWN, TEXTS, RUN, STEPS, SPENT = "own.npy", "texts.yaml", "run.yaml", "steps.json", "spent.json"
WRITTEN = "own.jsonl"  # what regenerate writes for every prompt
WARM_UP, TIMED = 3, 10  # steps


def main(arguments: Sequence[str]) -> None:
    """Train what is not trained yet. Raises CalledProcessError if a command fails."""
    zoo = yaml.safe_load((HERE / "zoo.yaml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/zoo"), help="folder of all runs")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=list(zoo["heads"]),
        default=list(zoo["heads"]),
        metavar="HEAD",
        help="heads; none: the outputs that all are trained on are generated, and nothing is trained",
    )
    parser.add_argument("--minutes", type=float, default=40.0, help="of one core, for each head")
    parser.add_argument("--num-prompts", type=int, default=8192, help="that the target continues, to train on")
    options = parser.parse_args(arguments)
    for name in ("minutes", "num_prompts"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: give more than 0")
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    generate_outputs(options.work, options.num_prompts)
    for name in options.only:
        folder = options.work / name
        folder.mkdir(exist_ok=True)
        steps = choose_steps(folder, recipe(zoo, name, options.work, steps=WARM_UP + TIMED), minutes=options.minutes)
        train(folder, recipe(zoo, name, options.work, steps=steps))


def generate_outputs(work: Path, num_prompts: int) -> None:
    """Let the target continue its training text, if it has not: what all heads are trained on."""
    if (work / OWN).exists():
        with (work / WRITTEN).open("rb") as lines:
            known = sum(1 for _ in lines)
        if known != num_prompts:
            raise SystemExit(
                f"--num-prompts {num_prompts}: {work} has outputs for {known}; give that, or another --work folder"
            )
        return
    texts = yaml.safe_load((HERE / TEXTS).read_text(encoding="utf-8"))
    (work / TEXTS).write_text(yaml.safe_dump({**texts, "cache": str(work / "cache")}), encoding="utf-8")
    _paceline(
        *("data", "regenerate", str(work / TEXTS), "--model", str(TARGET), "--dtype", "bfloat16", "--threads", "1"),
        *("--num-prompts", str(num_prompts), "--batch-size", "64", "--output", str(work / OWN)),
    )


def recipe(zoo: dict[str, Any], name: str, work: Path, *, steps: int) -> dict[str, Any]:
    """The configuration of a head's run: what all share, and what is the head's own."""
    raw: dict[str, Any] = deepcopy(zoo["shared"])
    own: dict[str, Any] = deepcopy(zoo["heads"][name])
    raw["heads"] = [{"name": name, **own.pop("head")}]
    for section, fields in own.items():
        raw[section] = {**raw.get(section, {}), **fields}
    data = raw["data"]
    for source in data["sources"]:
        if "paths" in source:
            source["paths"] = [str(work / path) for path in source["paths"]]
    data["cache"] = str(work / data["cache"])
    raw["hidden_states"]["folder"] = str(work / raw["hidden_states"]["folder"])
    raw["schedule"]["steps"] = steps
    raw["output"] = str(work / name)
    return raw


def choose_steps(folder: Path, raw: dict[str, Any], *, minutes: float) -> int:
    """The steps that take ``minutes`` of one core with their validations: measured once, and read afterwards."""
    path = folder / STEPS
    if not path.exists():
        config = TrainConfig.model_validate(raw)
        step, validation = measure(config)
        steps = steps_within(minutes * 60, step, validation, config.validation.every)
        found = {"minutes": minutes, "seconds_per_step": step, "seconds_per_validation": validation, "steps": steps}
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["minutes"] != minutes:
        raise SystemExit(
            f"--minutes {minutes}: {path} was chosen for {found['minutes']}; give that, or another --work folder"
        )
    print(f"{folder.name}: {found['steps']} steps of {found['seconds_per_step']:.3f} s, {path}", flush=True)
    return int(found["steps"])


def steps_within(seconds: float, step: float, validation: float, every: int) -> int:
    """The most steps that fit: there is a validation after ``every`` of them, and after the last one.

    Raises SystemExit where not one fits.
    """
    counts = range(1, max(1, int(seconds / (every * step))) + 2)  # of validations
    steps = max(min(count * every, int((seconds - count * validation) / step)) for count in counts)
    if steps < 1:
        raise SystemExit(
            f"--minutes {seconds / 60:g}: a step and a validation take {step + validation:.0f} s; give more"
        )
    return steps


def measure(config: TrainConfig) -> tuple[float, float]:
    """Seconds of one thread for a step, the median of some, and for a validation. Writes only hidden states."""
    return Run(config=config).probe(time.process_time, warm_up=WARM_UP, timed=TIMED)


def train(folder: Path, raw: dict[str, Any]) -> None:
    """Run ``paceline train``, which resumes, and add up the processor time that it takes."""
    path = folder / RUN
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    read_train_config(path)
    before = os.times()
    try:
        _paceline("train", str(path))
    finally:
        after, spent = os.times(), folder / SPENT
        seconds = after.children_user + after.children_system - before.children_user - before.children_system
        earlier = json.loads(spent.read_text(encoding="utf-8")) if spent.exists() else []
        spent.write_text(json.dumps([*earlier, round(seconds, 1)]) + "\n", encoding="utf-8")


def _paceline(*arguments: str) -> None:
    command = [sys.executable, "-m", "paceline", *arguments]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main(sys.argv[1:])
