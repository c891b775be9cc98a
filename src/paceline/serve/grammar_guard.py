"""Bounds the time of grammars: each is first compiled in a process of its own, which is ended when it takes too long.

The same grammar is then known to be harmless, or refused without being tried again. What a step of decoding may cost
is bounded by the parser's own limits (``paceline.constraints.grammar``).
"""

import asyncio
import hashlib
import json
import signal
import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import final
from weakref import WeakKeyDictionary

from paceline.api.params import SamplingParams
from paceline.api.structured import StructuredOutputs
from paceline.constraints.grammar import LIMITS, describe, spelling_of, tokenizer_of
from paceline.serve.errors import ApiError
from paceline.text.tokenizer import Tokenizer

WORKER = Path(__file__).with_name("grammar_worker.py")
REMEMBERED = 1024  # grammars
STARTING_SECONDS = 60.0  # for the process, which reads the tokenizer
PATIENCE = 10  # times its processor time is waited for a grammar, on a machine that does other things too


@final
class GrammarGuard:
    """``check`` refuses what cannot be compiled in ``seconds`` of processor time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._known: OrderedDict[bytes, str] = OrderedDict()  # what is wrong with each, "" for nothing
        # A lock and a process belong to one event loop.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._process: asyncio.subprocess.Process | None = None

    async def check(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        """Raise ApiError for a grammar in ``params`` that is wrong or takes too long."""
        asked = params.structured_outputs
        if not isinstance(asked, StructuredOutputs) or tokenizer is None:
            return
        try:
            await asyncio.to_thread(spelling_of, tokenizer)
            definition = await asyncio.to_thread(describe, asked.kind, getattr(asked, asked.kind), spaces=asked.spaces)
        except ValueError as error:
            raise ApiError(400, f"structured_outputs: {asked.kind}: {error}", param="structured_outputs") from error
        key = hashlib.sha256(definition.encode()).digest()
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            if key not in self._known:
                self._known[key] = await self._try(tokenizer, definition)
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
        if self._known.get(key):
            reason = f"structured_outputs: {asked.kind}: {self._known[key]}"
            raise ApiError(400, reason, param="structured_outputs")

    async def close(self) -> int:
        """End the process, if there is one; the number of the signal that ended it, 0 without a process."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with suppress(ProcessLookupError):
            process.kill()
        return -await process.wait()

    @property
    def _too_long(self) -> str:
        return f"to compile it takes longer than {self.seconds:g} s, which is what this server takes; simplify it"

    async def _try(self, tokenizer: Tokenizer, definition: str) -> str:
        try:
            if self._process is None or self._process.returncode is not None:
                await asyncio.wait_for(self._start(tokenizer), STARTING_SECONDS)
            return await asyncio.wait_for(self._ask(definition), PATIENCE * self.seconds)
        except TimeoutError:
            await self.close()
            return self._too_long
        except (OSError, ValueError):  # the process has ended
            if await self.close() == getattr(signal, "SIGPROF", None):
                return self._too_long
            return "to compile it takes more memory than this server gives; simplify it"
        except BaseException:  # the client has left: what the process answers next would be for another
            await self.close()
            raise

    async def _start(self, tokenizer: Tokenizer) -> None:
        definition, end = tokenizer_of(tokenizer)
        pipe, quiet = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(WORKER), stdin=pipe, stdout=pipe, stderr=quiet, limit=1 << 24
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([definition, end, LIMITS, self.seconds]).encode() + b"\n")
        await self._ask("start: /.*/")

    async def _ask(self, definition: str) -> str:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(definition).encode() + b"\n")
        await self._process.stdin.drain()
        return json.loads(await self._process.stdout.readline())
