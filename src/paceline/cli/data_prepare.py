"""``paceline data prepare``: tokenises and packs a corpus, and prints counts."""

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from paceline.cli.commands.data import DataPrepare
from paceline.cli.console import make_table
from paceline.cli.data_inputs import read_corpus, read_rows
from paceline.cli.exit_codes import EXIT_OK
from paceline.train.data import PreparedData
from paceline.train.data.manifest import Split


def prepare(options: DataPrepare) -> int:
    """Tokenise what is not in the cache yet, and print counts."""
    corpus = read_corpus(options.corpus, length=options.length)
    if options.manifest is not None and not options.manifest.parent.is_dir():
        raise ValueError(f"--manifest {options.manifest}: no such directory: {options.manifest.parent}; create it")
    found = read_rows(corpus, options.model)
    if options.manifest is not None:
        options.manifest.write_text(found.manifest.to_json(), encoding="utf-8")
    counts = [_counts(found, split) for split in (Split.TRAIN, Split.VALIDATION)]
    if options.json:
        print(json.dumps({**dict(found.manifest.settings), "splits": counts}))
    else:
        Console(highlight=False).print(_table(counts, corpus.length), crop=False)
    return EXIT_OK


def _counts(found: PreparedData, split: Split) -> dict[str, object]:
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
