"""Computes the hidden states that a run reads, and gives them with its batches.

T inputs of a row, H hidden size, L taps.
"""

import dataclasses
import hashlib
import json
import shutil
import sys
from typing import final

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from paceline.models.base import LogitsFor
from paceline.models.fingerprint import fingerprint, memory_digest
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.config import TrainConfig
from paceline.train.data import PreparedData
from paceline.train.data.manifest import Manifest
from paceline.train.data.mixture import RowBatches
from paceline.train.files import existing
from paceline.train.loop.distributed import Strategy
from paceline.train.loop.float32_products import fast_products
from paceline.train.states.store import StatesFolder, StatesShape
from paceline.train.tasks import Distillation, DraftHeadTask, Task
from paceline.train.tasks.terms import input_segments

SHARD_BYTES = 64 << 20  # about; what a kill can lose, and what is held in memory
GIB = 2**30


@final
class StoredStates:
    """The states of the rows that a run reads. Raises ValueError, before any work, if they do not fit or belong.

    The states of a row are those that training computes itself: of the same products, in batches of as many rows.
    """

    def __init__(self, config: TrainConfig, *, task: Task, data: PreparedData, strategy: Strategy) -> None:
        section, frozen = config.hidden_states, task.frozen
        assert section is not None and frozen is not None
        self._target, self._batches, self._strategy = frozen, data.batches, strategy
        self._precision, self._max_bytes = config.precision, section.max_bytes
        self._num_together = config.batch.rows // (strategy.world * config.batch.accumulate)
        self.folder = StatesFolder(
            section.folder,
            identity=_identity(frozen, data.manifest, precision=config.precision),
            shape=StatesShape(
                taps=_taps(task, section.taps),
                length=config.batch.length,
                hidden_size=frozen.config.hidden_size,
                dtype=frozen.dtype,
            ),
        )
        self._numbers = _first_numbers(data.batches, steps=config.schedule.steps)
        self._missing = self.folder.missing(self._numbers)
        strategy.on_main(self._check_room)

    @property
    def missing_bytes(self) -> int:
        """Bytes that ``make`` writes."""
        return len(self._missing) * self.folder.shape.row_bytes

    def make(self) -> None:
        """Compute what is missing, each process its share. A collective call."""
        strategy, size = self._strategy, self._num_together
        strategy.on_main(self.folder.begin)
        per_shard = max(1, SHARD_BYTES // self.folder.shape.row_bytes // size) * size
        shards = [self._missing[first : first + per_shard] for first in range(0, len(self._missing), per_shard)]
        columns = (TextColumn("storing hidden states"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        shown = strategy.main and sys.stderr.isatty()
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
            task = progress.add_task("", total=len(self._missing) // strategy.world)
            for rows in shards[strategy.rank :: strategy.world]:
                parts = [self._compute(rows[first : first + size]) for first in range(0, len(rows), size)]
                tokens, states = (torch.cat(part) for part in zip(*parts, strict=True))
                self.folder.write(rows, tokens, states)
                progress.advance(task, len(rows))
        strategy.on_main(lambda: None)  # all shards are there
        self.folder.refresh()
        self._missing = []

    @torch.no_grad()
    def _compute(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Tokens [n, T + 1] and states [n, L, T, H] of ``rows``; rows are repeated to as many as a batch has."""
        numbers = [self._numbers[row] for row in rows]
        filled = numbers + numbers[-1:] * (self._num_together - len(numbers))
        batch = self._batches.gather(filled).to(self._strategy.device)
        device, taps = self._strategy.device, self.folder.shape.taps
        with (
            fast_products(device),
            torch.autocast(device.type, torch.bfloat16, enabled=self._precision == "bf16"),
        ):
            output = self._target.causal(
                batch.tokens[:, :-1], taps=taps, logits_for=LogitsFor.NONE, segment=input_segments(batch)
            )
        states = torch.stack([output.hidden[tap] for tap in taps], dim=1).to(self.folder.shape.dtype)
        return batch.tokens[: len(rows)].cpu(), states[: len(rows)].cpu()

    def _check_room(self) -> None:
        if not self._missing:
            return
        needed, there = self.missing_bytes, self.folder.num_bytes
        what = f"the states of {len(self._missing)} rows need {needed} bytes ({needed / GIB:.2f} GiB)"
        if self._max_bytes is not None and there + needed > self._max_bytes:
            more = f" beside {there} that are there" if there else ""
            raise ValueError(
                f"hidden_states.max_bytes={self._max_bytes}: {what}{more}; raise it, lower schedule.steps, or train "
                "without hidden_states"
            )
        place = self.folder.folder
        free = shutil.disk_usage(existing(place)).free
        if needed > free:
            raise ValueError(
                f"hidden_states.folder={place}: {what}, and {free} are free there; make room, give another folder, or "
                "train without hidden_states"
            )


@final
class StoredBatches:
    """The batches of a run with the states of their rows."""

    def __init__(self, batches: RowBatches, folder: StatesFolder) -> None:
        self._batches, self._folder, self.rows = batches, folder, batches.rows

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of the step's batch."""
        batch = self._batches.batch(step, rows)
        numbers = [self._batches.index(step * self.rows + row) for row in rows]
        return dataclasses.replace(batch, hidden=self._folder.read(numbers, batch.tokens))


def _taps(task: Task, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    """What the task reads and, of ``asked``, what other runs will; the last layer's state gives the logits."""
    assert task.frozen is not None
    last = task.frozen.num_layers
    beyond = [tap for tap in asked or () if tap > last]
    if beyond:
        raise ValueError(f"hidden_states.taps: {beyond[0]}, and the target has {last} layers; give 0 to {last}")
    if isinstance(task, DraftHeadTask):
        return tuple(sorted({*task.taps, last, *(asked or ())}))
    assert isinstance(task, Distillation)
    return tuple(sorted({last, *(asked or ())}))


def _identity(target: DecoderLM, manifest: Manifest, *, precision: str) -> dict[str, object]:
    """What the states depend on, but for the taps."""
    data = {
        "settings": dict(manifest.settings),
        "files": [[file.sha256, file.split, file.num_tokens, file.num_learned] for file in manifest.files],
    }
    return {
        "target": fingerprint(target).fields(),
        "weights": memory_digest(target),
        "dtype": dtype_name(target.dtype),
        "precision": precision,
        "length": int(dict(manifest.settings)["length"]),
        "data": hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32],
    }


def _first_numbers(batches: RowBatches, *, steps: int) -> dict[int, int]:
    """The rows that ``steps`` steps read, by the place in the order at which each is first read."""
    found: dict[int, int] = {}
    for number in range(steps * batches.rows):
        if len(found) == batches.num_rows:
            break
        found.setdefault(batches.index(number), number)
    return found
