"""``paceline datastore build``: the texts that the drafter ``retrieval`` copies from, as a sorted store."""

import glob
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, cast

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.cli.command import EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.options import AT_LEAST_1, MODEL, MODEL_PATH, OUTPUT, POSITIONAL, Json, Quiet
from paceline.models.directory import is_hub_id

KINDS = {"text": "jsonl", "messages": "chat", "input_ids": "rows"}  # of the first line of a .jsonl file
ARRAYS = (".npy", ".bin")


@dataclass(frozen=True, slots=True)
class DatastoreBuild(Command):
    """Tokenise texts, sort them and write the datastore that `--drafter retrieval:DIR` copies from.

    Text files, folders and globs; .jsonl files with lines of {"text": ...}, {"messages": ...} or {"input_ids": ...};
    token ids as .npy or 16-bit .bin; or the name of a dataset on the Hub (owner/name). Needs the package pydivsufsort:
    pip install 'paceline[retrieval]'.

    Examples:

        paceline datastore build 'corpus/**/*.txt' --model DIR --output store
        paceline datastore build answers.jsonl --model DIR --output store
        paceline datastore build owner/name --split train --field content --take 100000 --model DIR --output store
    """

    files: Annotated[tuple[str, ...], POSITIONAL]
    """Files, folders, globs, or one dataset."""
    _: KW_ONLY
    model: Annotated[str, Parameter(group=MODEL), MODEL_PATH]
    """The target, whose tokenizer is used: directory or Hub id."""
    output: Annotated[Path, Parameter(group=OUTPUT)]
    """Directory for the datastore."""
    overwrite: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Replace a datastore that is there."""
    subset: str | None = None
    """Of a dataset: its configuration."""
    split: str = "train"
    """Of a dataset: its split."""
    field: str | None = None
    """Column of a dataset, or field of the .jsonl files, that holds the text; text by default."""
    take: Annotated[int | None, AT_LEAST_1] = None
    """Of a dataset: only so many rows, from the first."""
    quiet: Quiet = False
    json: Json = False

    def run(self) -> int:
        """Build it."""
        from paceline.train.data.corpus import read_corpus
        from paceline.train.data.datastore import build_datastore, check_output, import_sorter

        library = import_sorter()
        check_output(self.output, overwrite=self.overwrite)
        corpus = read_corpus({"sources": self._sources()}, length=None)
        console = Console(stderr=True)
        shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=self.quiet or not console.is_terminal,
        )
        try:
            with shown as bar:
                task = bar.add_task("tokenising", total=None)
                header = build_datastore(
                    corpus,
                    model=self.model,
                    output=self.output,
                    overwrite=self.overwrite,
                    library=library,
                    progress=lambda what, done, total: bar.update(
                        task, description=what, completed=done, total=None if what == "sorting" else total
                    ),
                )
        except KeyboardInterrupt:
            print(f"interrupted; nothing was written to {self.output}", file=sys.stderr)
            return EXIT_INTERRUPTED
        size = sum(header.lengths.values())
        if self.json:
            counts = {"documents": header.num_documents, "tokens": header.num_tokens, "bytes": size}
            print(json.dumps({"output": str(self.output), **counts}))
        elif not self.quiet:
            counts = f"{header.num_tokens:,} tokens of {header.num_documents:,} documents, {size / 1e6:,.1f} MB"
            print(f"{self.output}: {counts}")
            print(f"to draft from it: --drafter retrieval:{self.output}")
        return EXIT_OK

    def _sources(self) -> list[dict[str, object]]:
        """The sources, as the section ``data`` of a training configuration names them."""
        named = [one for one in self.files if not Path(one).exists() and not glob.glob(one, recursive=True)]
        datasets = [one for one in named if _is_dataset(one)]
        if named != datasets:
            missing = next(one for one in named if one not in datasets)
            raise ValueError(f"{missing}: no such file, and no folder or pattern with any; give one that is there")
        if datasets and len(self.files) > 1:
            raise ValueError(f"{datasets[0]} with other files: build a datastore of one dataset, or of files")
        of_dataset = {"--subset": self.subset, "--take": self.take, "--split": self.split != "train" or None}
        if datasets:
            chosen = {"subset": self.subset, "part": self.split, "field": self.field, "take": self.take}
            return [{"kind": "datasets", "name": datasets[0], "streaming": self.take is not None, **chosen}]
        for option, value in of_dataset.items():
            if value is not None:
                raise ValueError(f"{option} is of a dataset, and files are given: leave it out")
        return self._of_files()

    def _of_files(self) -> list[dict[str, object]]:
        from paceline.train.data.sources.documents import find_files

        found: dict[tuple[str, str | None], list[str]] = {}
        for path in find_files(self.files):
            found.setdefault(_kind_of(path, self.field), []).append(str(path))
        if self.field is not None and all(kind != "jsonl" for kind, _ in found):
            raise ValueError(f"--field {self.field}: none of the files is a .jsonl file; leave it out")
        sources: list[dict[str, object]] = []
        for (kind, field), paths in found.items():
            named: dict[str, object] = {} if field is None else {"field": field}
            sources.append({"kind": kind, "paths": paths, **named})
        return sources


def _is_dataset(name: str) -> bool:
    """Whether it is owner/name, and no mistyped file of a folder that is there."""
    return "/" in name and is_hub_id(name) and not Path(name).parent.exists()


def _kind_of(path: Path, field: str | None) -> tuple[str, str | None]:
    """The kind of source that a file is, and the field of its texts. Raises ValueError for lines of another form."""
    if path.suffix in ARRAYS:
        return "tokens", None
    if path.suffix != ".jsonl":
        return "text", None
    if field is not None:
        return "jsonl", field
    names = list(_first_row(path))
    kind = next((KINDS[name] for name in KINDS if name in names), None)
    if kind is None:
        raise ValueError(
            f"{path}, line 1: none of {', '.join(KINDS)} among {', '.join(map(repr, names)) or 'no fields'}; say which "
            "holds the text: --field NAME"
        )
    return kind, None


def _first_row(path: Path) -> Iterable[str]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = next((line for line in file if line.strip()), "")
    try:
        row = json.loads(line or "{}")
    except ValueError as error:
        raise ValueError(f"{path}, line 1: not JSON ({error}); give an object a line") from error
    return cast("Mapping[str, object]", row) if isinstance(row, dict) else ()
