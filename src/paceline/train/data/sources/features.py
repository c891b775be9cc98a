"""Precomputed hidden states, in the layout of vllm-project/speculators 0.7.0.

FOLDER/hidden_states/hs_I.safetensors has ``token_ids`` [T] int64 and ``hidden_states`` [T, L, H] of row I: the
residual stream after each of L layers, with the target's last layer at the end, before its final norm. The rows
(input_ids and loss_mask) are in FOLDER as a saved dataset of the package ``datasets``. Paceline also writes them to
rows.jsonl, and the layers to features.json. T tokens, H hidden size.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.train.data.config import FeaturesSource, RowsSource
from paceline.train.data.encoders import Encoder
from paceline.train.data.manifest import File
from paceline.train.data.packing import Packing, Row
from paceline.train.data.sources.documents import Document, Reader, Tokens
from paceline.train.data.sources.hub_datasets import import_datasets
from paceline.train.data.sources.text_files import JsonLines, parse_row

ROWS_FILE, META_FILE, HIDDEN_FOLDER = "rows.jsonl", "features.json", "hidden_states"


@final
class FeatureFolder(Reader):
    """The rows whose hidden states are there; others were skipped when they were computed."""

    def __init__(self, source: FeaturesSource, encoder: Encoder) -> None:
        path = source.path
        self._path = Path(path)
        if not self._path.is_dir():
            raise ValueError(f"data: {path}: no such folder; paceline data features writes one")
        self._lines, self._rows = None, []
        if (self._path / ROWS_FILE).exists():
            rows = RowsSource(kind="rows", paths=(str(self._path / ROWS_FILE),))
            self._lines = JsonLines(rows, encoder)
        else:
            package = import_datasets(f"data: {path} has no {ROWS_FILE}")
            self._rows = package.load_from_disk(path).with_format(None)
        self._found = {number for number in map(_number, (self._path / HIDDEN_FOLDER).glob("hs_*.safetensors"))}
        if not self._found:
            raise ValueError(f"data: {path}: no {HIDDEN_FOLDER}/hs_0.safetensors or any other; compute them first")

    def files(self) -> list[File]:
        """All rows as one file. Tokens are hashed by content; hidden states, which are large, by number and size."""
        digest = hashlib.sha256()
        size = 0
        for row in self._documents():
            digest.update(row.tokens.tobytes() + b";" + (b"" if row.learned is None else row.learned.tobytes()))
        for number in sorted(self._found):
            num_bytes = sample_path(self._path, number).stat().st_size
            digest.update(f"{number} {num_bytes};".encode())
            size += num_bytes
        return [File(name=self._path.as_posix(), num_bytes=size, sha256=digest.hexdigest())]

    def documents(self, index: int) -> Iterator[Document]:
        """The rows in order."""
        yield from self._documents()

    def _documents(self) -> Iterator[Tokens]:
        if self._lines is not None:
            for row in self._lines.documents(0):
                assert isinstance(row, Tokens)
                if row.origin in self._found:
                    yield row
            return
        for number in sorted(self._found):
            if number < len(self._rows):
                yield parse_row(self._rows[number], "", f"{self._path}, row {number}", number)


@final
class RowsWithHidden:
    """Rows of a packing, with their hidden states."""

    def __init__(self, packing: Packing, *, path: str, taps: Sequence[int] | None) -> None:
        self._packing, self._path = packing, Path(path)
        self._taps = tuple(taps) if taps is not None else read_taps(self._path)
        first = sample_path(self._path, int(packing.split.origin[0]))
        with safe_open(first, framework="pt") as file:
            _, layers, self._hidden_size = file.get_slice("hidden_states").get_shape()
        if layers != len(self._taps):
            raise ValueError(
                f"data: {path}: its files hold {layers} layers, and taps names {len(self._taps)}; name those layers "
                "that they hold, in their order"
            )

    @property
    def num_rows(self) -> int:
        """Number of rows of the packing."""
        return self._packing.num_rows

    @property
    def segmented(self) -> bool:
        """Whether the packing is."""
        return self._packing.segmented

    def row(self, index: int) -> Row:
        """Raises ValueError, naming the file, if one is broken or has other tokens."""
        row, length = self._packing.row(index), self._packing.length
        whole: Tensor | None = None
        at = 0
        for span in self._packing.spans(index):
            path = sample_path(self._path, int(self._packing.split.origin[span.document]))
            size = min(span.stop - span.start, length - at)
            if size <= 0:
                break
            try:
                with safe_open(path, framework="pt") as file:
                    tokens = file.get_slice("token_ids")[span.start : span.start + size]
                    hidden = file.get_slice("hidden_states")[span.start : span.start + size]
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path}: cannot be read ({error}); compute it again") from error
            if tokens.tolist() != row.tokens[at : at + size].tolist():
                raise ValueError(f"{path}: hidden states of other tokens than its row has; compute it again")
            if whole is None:
                whole = torch.zeros(length, len(self._taps), self._hidden_size, dtype=hidden.dtype)
            whole[at : at + size] = hidden
            at += size
        assert whole is not None
        states: Mapping[int, Tensor] = {tap: whole[:, layer] for layer, tap in enumerate(self._taps)}
        return Row(tokens=row.tokens, learned=row.learned, segment=row.segment, hidden=states)


def sample_path(folder: Path, number: int) -> Path:
    """The file of a row's hidden states."""
    return folder / HIDDEN_FOLDER / f"hs_{number}.safetensors"


def read_taps(folder: Path) -> tuple[int, ...]:
    """The layers that the files of ``folder`` hold. Raises ValueError if features.json is missing."""
    path = folder / META_FILE
    if not path.exists():
        raise ValueError(
            f"data: {folder}: no {META_FILE} says which layers it holds; give taps, as for vLLM's default of a target "
            "of 32 layers [2, 16, 29, 32]"
        )
    return tuple(json.loads(path.read_text(encoding="utf-8"))["taps"])


def write_sample(folder: Path, number: int, tokens: Tensor, hidden: Tensor) -> None:
    """``tokens`` [T] and ``hidden`` [T, L, H] of a row, renamed once complete."""
    path = sample_path(folder, number)
    part = path.with_suffix(".part")
    save_file({"token_ids": tokens.long().cpu(), "hidden_states": hidden.contiguous().cpu()}, part)
    part.replace(path)


def save_rows(folder: Path) -> bool:
    """Save rows.jsonl as a dataset, which speculators' trainer reads; False if ``datasets`` is not installed."""
    try:
        package = import_datasets(str(folder))
    except ValueError:
        return False
    with (folder / ROWS_FILE).open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    columns = {name: [row[name] for row in rows] for name in ("input_ids", "loss_mask")}
    whole = package.Dataset.from_dict({**columns, "seq_len": [len(row["input_ids"]) for row in rows]})
    whole.set_format(type="torch")
    whole.save_to_disk(str(folder))
    return True


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("hs_")
    return int(digits) if digits.isdecimal() else -1
