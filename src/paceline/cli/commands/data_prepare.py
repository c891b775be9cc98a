"""``paceline data prepare``: tokenises and packs a corpus, and prints counts."""

import json
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.console import make_table
from paceline.cli.corpus import CorpusOptions, Length
from paceline.cli.options import MODEL, MODEL_PATH, OUTPUT, Json

if TYPE_CHECKING:
    from paceline.train.data import PreparedData
    from paceline.train.data.manifest import Split


@dataclass(frozen=True, slots=True)
class DataPrepare(Command):
    """Tokenise a corpus, pack it into rows and print counts, before anything is trained.

    A training run does the same by itself; token ids are cached. Errors in a corpus are reported with file and line.

    Examples:

        paceline data prepare run.yaml
        paceline data prepare --text 'corpus/**/*.txt' --model DIR --length 1024
        paceline data prepare --library --bytes --json
    """

    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    _: KW_ONLY
    model: Annotated[str | None, Parameter(group=MODEL), MODEL_PATH] = None
    """The target: directory or Hub id; from the configuration by default."""
    length: Length = None
    manifest: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Write name, hash and counts of every file to this file."""
    json: Json = False

    def run(self) -> int:
        """Tokenise what is not in the cache yet, and print counts."""
        from paceline.train.data.corpus import read_rows
        from paceline.train.data.manifest import Split

        corpus = self.corpus.read(length=self.length)
        if self.manifest is not None and not self.manifest.parent.is_dir():
            raise ValueError(f"--manifest {self.manifest}: no such directory: {self.manifest.parent}; create it")
        found = read_rows(corpus, self.model)
        if self.manifest is not None:
            self.manifest.write_text(found.manifest.to_json(), encoding="utf-8")
        counts = [_counts(found, split) for split in (Split.TRAIN, Split.VALIDATION)]
        if self.json:
            print(json.dumps({**dict(found.manifest.settings), "splits": counts}))
        else:
            Console(highlight=False).print(_table(counts, corpus.length), crop=False)
        return EXIT_OK


def _counts(found: "PreparedData", split: "Split") -> dict[str, object]:
    records = [record for record in found.manifest.files if record.split == split.value]
    return {
        "split": split.value,
        "files": len(records),
        "bytes": sum(record.num_bytes for record in records),
        "documents": sum(record.num_documents for record in records),
        "tokens": sum(record.num_tokens for record in records),
        "learned": sum(record.num_learned for record in records),
        **{name.removeprefix("num_"): value for name, value in asdict(found.counts[split]).items()},
    }


def _table(counts: list[dict[str, object]], length: int) -> Table:
    names = [name for name in counts[0] if name != "bytes"]
    rows = (
        [f"{value:,}" if isinstance(value := split[name], int) else str(value) for name in names] for split in counts
    )
    table = make_table(names, rows)
    table.title, table.title_justify = f"rows of {length} tokens", "left"
    return table
