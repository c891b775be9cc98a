"""Made-up texts and semantic ids that are aligned, to train and measure text-to-semantic models on.

Every symbol of a text becomes a run of ids: which ones, and how many, is drawn once for each symbol, as the clusters
of a speech model are for a sound. A run is said a little longer or shorter at random, and some ids are replaced.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

from benchmarks.study import check_counts, option

NUM_TEXT_IDS, NUM_SEMANTIC_IDS = 32, 64
END, START = NUM_SEMANTIC_IDS, NUM_SEMANTIC_IDS + 1
SYMBOLS = (3, 12)  # of a text, at least and at most
RUN = (3, 9)  # ids of a symbol
STRETCHED, REPLACED = 0.15, 0.03  # shares of runs, and of ids
TABLE_SEED = 2302


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A text and the ids that it becomes, without start and end."""

    source: list[int]
    output: list[int]


def runs(num_text_ids: int = NUM_TEXT_IDS, num_semantic_ids: int = NUM_SEMANTIC_IDS) -> list[list[int]]:
    """The ids of every symbol."""
    random = Random(TABLE_SEED)
    return [[random.randrange(num_semantic_ids) for _ in range(random.randint(*RUN))] for _ in range(num_text_ids)]


def pairs(seed: int, table: list[list[int]] | None = None, num_semantic_ids: int = NUM_SEMANTIC_IDS) -> Iterator[Pair]:
    """Random pairs without an end; symbols that follow each other differ. ``table`` None is ``runs()``."""
    random, table = Random(seed), table or runs()
    while True:
        source: list[int] = []
        for _ in range(random.randint(*SYMBOLS)):
            source.append(random.choice([symbol for symbol in range(len(table)) if source[-1:] != [symbol]]))
        output = [said for symbol in source for said in _said(table[symbol], random, num_semantic_ids)]
        yield Pair(source=source, output=output)


def _said(run: list[int], random: Random, num_semantic_ids: int) -> list[int]:
    """A run as it is said this time."""
    ids = list(run)
    if random.random() < STRETCHED:
        at = random.randrange(len(ids))
        ids = [*ids[:at], ids[at], *ids[at:]] if random.random() < 0.5 else [*ids[:at], *ids[at + 1 :]]
    return [(said + 1) % num_semantic_ids if random.random() < REPLACED else said for said in ids]


def line_of(pair: Pair) -> str:
    """A pair as ``paceline train`` reads it (a source of kind pairs)."""
    return json.dumps({"source": pair.source, "input_ids": [START, *pair.output, END]})


@dataclass(frozen=True, kw_only=True)
class SemanticData:
    """Write made-up pairs of texts and semantic ids, for examples/text_to_semantic.yaml."""

    out: Annotated[Path, option("The file, of JSON lines.")]
    count: Annotated[int, option("Pairs.")] = 20_000
    seed: Annotated[int, option("Of the pairs; the runs of symbols are always the same.")] = 1

    def run(self) -> int:
        """Write the file; the exit code."""
        check_counts(count=self.count)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        found = pairs(self.seed)
        self.out.write_text("".join(f"{line_of(next(found))}\n" for _ in range(self.count)), encoding="utf-8")
        return 0
