"""Other people's programs, held open between their turns and stopped while somebody else is timed. Knows no peer.

A program's whole process group gets SIGSTOP when its turn ends and SIGCONT when the next begins, so that neither a loop
that waits by spinning nor a helper process takes time from others; until its first turn it runs. The group stays in our
session: when we die, the kernel sends SIGHUP and SIGCONT to a stopped group that is left alone, and a running one sees
the end of its standard input.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, final

from paceline.bench.runner import DecodingFailed
from paceline.openmp import SPIN_VARIABLE, SPINS

PATIENCE = 1800.0  # seconds for a start or an answer; compiling a large model takes minutes
GRACE = 10.0  # seconds between asking to end and ending
LAST_WORDS = 2.0  # seconds for them
NUM_LINES = 15  # of them
GUARD: Final = Path(__file__).with_name("scripts") / "end_with_owner.py"


class Process:
    """A program in a process group of its own; what it writes is kept for the day it fails."""

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        self.name = name
        self._words = TemporaryFile()
        self.popen = self._start(command, environment, words=self._words)

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], *, words: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return _popen(self.name, [sys.executable, str(GUARD), *command], environment, stdout=words, stderr=words)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Its turn: the group runs inside and is stopped outside. Raises DecodingFailed once it was closed."""
        if self._words.closed:
            raise DecodingFailed(f"{self.name}: it was ended; make the configuration again")
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def failure(self, what: str) -> DecodingFailed:
        """An error with its exit code, if it ended, and its last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(LAST_WORDS)  # whoever closed a pipe is about to end
        code = self.popen.returncode
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - 64 * 1024))
        lines = self._words.read().decode(errors="replace").splitlines()[-NUM_LINES:]
        ended = "" if code is None else f"; it ended with exit code {code}"
        return DecodingFailed("\n".join([f"{self.name}: {what}{ended}", *(f"  | {line}" for line in lines)]))

    @property
    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    def close(self) -> None:
        """End the group, kindly first."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            self._signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(GRACE)
                break
        self._signal(signal.SIGKILL)  # helpers that outlived it
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._words.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)


@final
class Answering(Process):
    """A program that answers a line of JSON on standard input with a line of JSON on standard output."""

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        super().__init__(name, command, environment=environment)
        self._read = b""

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], *, words: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return _popen(self.name, command, environment, stdout=subprocess.PIPE, stderr=words)

    def ask(self, order: Mapping[str, object], *, patience: float = PATIENCE) -> Any:
        """Its answer to ``order``. Raises DecodingFailed where it gives none, or one that is no JSON."""
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(json.dumps(order).encode() + b"\n")
            self.popen.stdin.flush()
        except OSError as error:
            raise self.failure("it listens no more") from error
        return self.answer(patience=patience)

    def answer(self, *, patience: float = PATIENCE) -> Any:
        """What it says next."""
        assert self.popen.stdout is not None
        deadline = time.monotonic() + patience
        while b"\n" not in self._read:
            if not select.select([self.popen.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise self.failure(f"no answer for {patience:g} seconds")
            read = os.read(self.popen.stdout.fileno(), 1 << 16)
            if not read:
                raise self.failure("it died")
            self._read += read
        line, _, self._read = self._read.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError as error:
            raise self.failure(f"its answer is no JSON: {line[:200]!r}") from error


def _popen(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int | IO[bytes],
    stderr: IO[bytes],
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            env={**_inherited(), **environment},
            process_group=0,
        )
    except OSError as error:
        raise DecodingFailed(f"{name}: {command[0]} does not start: {error.strerror}") from error


def first_cores(cores: Sequence[int], num_threads: int) -> tuple[int, ...]:
    """A core for each thread, from the first one on. Raises ValueError for more threads than cores."""
    if num_threads > len(cores):
        raise ValueError(
            f"{num_threads} threads on {len(cores)} cores: peers have a core for each; give --threads {len(cores)}"
        )
    return tuple(sorted(cores)[:num_threads])


def _inherited() -> dict[str, str]:
    """Our environment without what Paceline says to its own threads: others run as they run by themselves."""
    return {name: value for name, value in os.environ.items() if (name, value) != (SPIN_VARIABLE, SPINS)}
