"""Does a draft model pay on a Whisper checkpoint, and what share of the time does no draft make shorter?

Windows of sound are transcribed greedily, a batch at a time: plainly, twice, and with the draft model under the
controller, in turns of some tokens; and by transformers, in the same precision and in float32, a part after the others.
Each side reads the windows by an encoder of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from benchmarks.even_decoding import CONTROL, PLAIN, flat
from benchmarks.speech_cells import Cell, measure_cell, peer_of, windows_of
from benchmarks.study import (
    Precision,
    ProcessorTime,
    Progress,
    Study,
    Timing,
    check_counts,
    conditions_of,
    counts,
    date,
    missing,
    option,
    run_cells,
)
from paceline.api import Loaded, load
from paceline.bench.columns import Column, Section, grouped
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.core.stats import Summary
from paceline.kernels.cpu.instruction_set import current_set
from paceline.speech.model import speech_model

DRAFTED = "drafted"
PEERS = ("bfloat16", "float32")  # precisions of transformers, which is slow in bfloat16 on some processors


@dataclass(frozen=True, slots=True)
class Line:
    """One side in a cell."""

    batch_size: int
    side: str
    tokens_per_second: float
    over_plain: Estimate | None  # its speed over plain decoding's
    first: float  # milliseconds to the first token, of a batch
    encoder: float | None  # share of its time that is the encoder's; of our sides
    without: Estimate | None  # its speed over plain decoding's, the encoder's time left out; of the draft
    summary: Summary | None
    equal: float  # share of outputs that are plain decoding's
    control: float  # plain decoding over itself


def lines_of(record: Record) -> list[Line]:
    """What is shown of a cell."""
    seconds = {name: flat(repeats) for name, repeats in record["seconds"].items()}
    encoder = flat(record["encoder"])
    control = pooled_ratio(seconds[PLAIN], seconds[CONTROL]).value
    found: list[Line] = []
    for name, taken in seconds.items():
        if name == CONTROL:
            continue
        own = name in record["summaries"]
        rest = [[whole - part for whole, part in zip(times, encoder, strict=True)] for times in (seconds[PLAIN], taken)]
        found.append(
            Line(
                batch_size=record["cell"]["batch_size"],
                side=name,
                tokens_per_second=record["tokens"] * len(record["seconds"][name]) / sum(taken),
                over_plain=None if name == PLAIN else pooled_ratio(seconds[PLAIN], taken),
                first=1000 * record["first"][name],
                encoder=sum(encoder) / sum(taken) if own else None,
                without=pooled_ratio(*rest) if name == DRAFTED else None,
                summary=Summary(**record["summaries"][name]) if own else None,
                equal=1.0 if own else record["equal"][name],
                control=control,
            )
        )
    return found


COLUMNS: list[Column[Line]] = [
    Column("batch", "batch_size"),
    Column("side", "side", left=True),
    Column("tokens/s", "tokens_per_second", ".1f"),
    Column("over plain", "over_plain", ".2f"),
    Column("without encoder", "without", ".2f"),
    Column("encoder", "encoder", ".0%"),
    Column("first token ms", "first", ".0f"),
    Column("tokens per step", lambda line: line.summary and line.summary.mean_acceptance_length, ".2f"),
    Column("accepted", lambda line: line.summary and line.summary.acceptance_rate, ".0%"),
    Column("same text", "equal", ".0%"),
    Column("control", "control", ".3f"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStudy(Study):
    """Does a draft model pay on a Whisper checkpoint, and what share of the time does no draft make shorter?"""

    kind: ClassVar[str] = "speech"
    title: ClassVar[str] = "Speech"

    target: Annotated[Path, option("Directory of the Whisper checkpoint.")]
    draft: Annotated[Path, option("Directory of its draft model.")]
    sounds: Annotated[Path, option("Folder of .wav files, of one window each.")]
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1, 8)
    num_sounds: Annotated[int, option("Files that are read; as many as rows at least.")] = 8
    max_tokens: Annotated[int, option("New tokens at most.")] = 128
    repeats: Annotated[int, option("Timed decodings of every side.")] = 3
    peers: Annotated[tuple[str, ...], option("Precisions of transformers beside it.")] = PEERS
    dtype: Precision = "bfloat16"
    processor_time: ProcessorTime = False

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(batch=self.batch, num_sounds=self.num_sounds, max_tokens=self.max_tokens)
        check_counts(least=2, repeats=self.repeats)
        for rows in self.batch:
            if self.num_sounds % rows:
                raise ValueError(f"{self.num_sounds} sounds make no batches of {rows}; give a multiple of it")
        unknown = set(self.peers) - set(PEERS)
        if unknown:
            raise ValueError(f"--peers {', '.join(sorted(unknown))}: known are {', '.join(PEERS)}")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        paths = sorted(self.sounds.glob("*.wav"))[: self.num_sounds]
        if len(paths) < self.num_sounds:
            raise ValueError(f"{self.sounds} has {len(paths)} files .wav; give a folder with {self.num_sounds}")
        timing = Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time)
        drafts: dict[str, Path | None] = {PLAIN: None, CONTROL: None, DRAFTED: self.draft}
        sides = {
            name: (self._load(self.target), None if draft is None else self._load(draft))
            for name, draft in drafts.items()
        }
        model = speech_model(sides[PLAIN][0])
        windows = windows_of(model, paths)
        peers = {
            f"transformers, {dtype}": peer_of(self.target, dtype, windows, model.checkpoint.eos) for dtype in self.peers
        }
        choices = {
            "isa": current_set(),
            "repeats": self.repeats,
            "max_tokens": self.max_tokens,
            "peers": list(peers),
            "processor_time": self.processor_time,
        }
        conditions = conditions_of({"target": self.target, "draft": self.draft}, self.dtype, **choices)
        run = raw.begin(conditions, date)
        cells = [Cell(batch_size=rows, num_sounds=self.num_sounds) for rows in self.batch]
        for cell, identity in missing(raw, cells, run_cells(self.kind, run), say):
            found = measure_cell(cell, windows, sides=sides, peers=peers, max_tokens=self.max_tokens, timing=timing)
            raw.append({**identity, **found})

    def _load(self, path: Path) -> Loaded:
        return load(path, dtype=self.dtype, device="cpu")

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Line]]:
        """A table for every batch size."""
        conditions = run["conditions"]
        lines = [line for record in self.last(run, records) for line in lines_of(record)]
        return grouped(
            lambda rows: f"{conditions['target']['name']}, batch {rows}, {conditions['isa']}",
            COLUMNS,
            lines,
            lambda line: line.batch_size,
        )

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return [
            "encoder: its share of a side's time, which no draft makes shorter; without encoder: the rest of the time",
            "same text: of transformers', which rounds otherwise; tokens per step and accepted: of the last repeat",
            "[ ]: 95 % interval over parts and repeats; void: plain decoding differs from itself by more than 3 %",
        ]
