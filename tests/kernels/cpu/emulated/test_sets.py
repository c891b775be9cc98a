"""Every instruction set's kernel gives the same results, and a token's do not depend on what is computed beside it.

Calls of the kernel are recorded on this processor and replayed on each set: under an emulator that has the set and
nothing beyond it, and natively where the processor has it. `make instruction-sets` runs all of it.
"""

import signal
from pathlib import Path

import pytest
import torch

from tests.kernels.cpu.emulated import scenarios
from tests.kernels.cpu.emulated.recording import Event, exported, recording
from tests.kernels.cpu.emulated.sets import SETS, Target, library_of, replay

pytestmark = pytest.mark.slow  # the kernel is compiled for every set first, which takes minutes

AFTER_FLAGS = 128  # of a shell's exit code of a signal


def panels_of(one: Target, emulator: list[str]) -> dict[tuple[str, int], int]:
    """In which panels the set packs weights: what its functions return for every argument."""
    names = [name for name in exported(str(library_of(one))) if "panel_" in name]
    done = replay(one, "--integers", *names, emulator=emulator)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {(name, int(argument)): int(value) for name, argument, value in lines}


@torch.inference_mode()
def check(one: Target, name: str, folder: Path, emulator: list[str]) -> str:
    """Record a scenario and replay it; what the program reports."""
    panels, path = panels_of(one, emulator), folder / "recording"
    with recording() as recorder:
        (scenarios.short if name == "short" else scenarios.SCENARIOS[name])(recorder, panels)
    recorder.save(path)
    done = replay(one, str(path), emulator=emulator)
    assert done.returncode == 0, f"{one.isa.name} {emulator}: exit code {done.returncode}\n{done.stderr}{done.stdout}"
    return done.stdout


def runnable(one: Target) -> None:
    reason = one.missing()
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("one", SETS.values(), ids=SETS)
def test_short_recording_is_replayed(one, tmp_path):
    runnable(one)
    assert "0 failures" in check(one, "short", tmp_path, one.emulator() or [])


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "native"])
@pytest.mark.parametrize("scenario", scenarios.SCENARIOS)
@pytest.mark.parametrize("one", SETS.values(), ids=SETS)
def test_recording_is_replayed(one, scenario, emulated, tmp_path):
    runnable(one)
    emulator = one.emulator() if emulated else []
    if emulator is None or (not emulated and not one.native):
        pytest.skip(f"{one.isa.name} does not run that way here")
    print(check(one, scenario, tmp_path, emulator))


# A processor that lacks the set, to show that the runs above would notice an instruction beyond their set.
LACKING = {"avx2": "Nehalem", "avx512": "Haswell", "neonbf16": "cortex-a57"}


@pytest.mark.parametrize("name", LACKING)
def test_an_illegal_instruction_is_noticed(name, tmp_path):
    one, path = SETS[name], tmp_path / "recording"
    emulator = one.emulator(LACKING[name])
    if emulator is None:
        pytest.skip(f"no emulator of {one.isa.architecture}")
    with recording() as recorder, torch.inference_mode():
        scenarios.short(recorder, {})
    recorder.save(path)
    assert replay(one, str(path), emulator=emulator).returncode in (-signal.SIGILL, AFTER_FLAGS + signal.SIGILL)


@pytest.mark.parametrize(("scenario", "message"), [("steps", "integers differ"), ("products", "expected")])
def test_a_wrong_result_is_noticed(scenario, message, tmp_path):
    one, path = next(one for one in SETS.values() if one.native), tmp_path / "recording"
    with recording() as recorder, torch.inference_mode():
        scenarios.SCENARIOS[scenario](recorder, {})
    tags = [int.from_bytes(event[:8], "little") for event in recorder.events]
    last = max(index for index, tag in enumerate(tags) if tag == Event.CLOSE)
    recorder.events[last] = recorder.events[last][:-1] + b"\x55"
    recorder.save(path)
    done = replay(one, str(path))
    assert done.returncode == 1 and message in done.stderr
