"""Hidden states that were computed before, in the layout of vllm-project/speculators 0.7.0. Runs no model.

FOLDER/hidden_states/hs_I.safetensors holds of row I ``token_ids`` [T] int64 and ``hidden_states`` [T, L, H], the
residual stream after each of L layers: the target's last layer comes last, before its final norm. The rows themselves,
input_ids and loss_mask, are in FOLDER as a saved data set of the package ``datasets``; what we write has them in
rows.jsonl too, beside features.json, which says which layers these are. T tokens, H hidden size.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.train.data.documents import Document, File, JsonlRows, Reader, Tokens, as_row
from paceline.train.data.hub_datasets import need_datasets
from paceline.train.data.packing import Packing, Row

ROWS_FILE, META_FILE, HIDDEN_FOLDER = "rows.jsonl", "features.json", "hidden_states"


@final
class FeatureFolder(Reader):
    """The rows whose hidden states are there; others were skipped by whoever computed them."""

    def __init__(self, *, path: str) -> None:
        self._path = Path(path)
        if not self._path.is_dir():
            raise ValueError(f"data: {path}: no such folder; paceline data features writes one")
        self._lines = JsonlRows(paths=[str(self._path / ROWS_FILE)]) if (self._path / ROWS_FILE).exists() else None
        package = need_datasets(f"data: {path} has no {ROWS_FILE}") if self._lines is None else None
        self._rows: Any = None if package is None else package.load_from_disk(str(path)).with_format(None)
        self._found = {number for number in map(_number, (self._path / HIDDEN_FOLDER).glob("hs_*.safetensors"))}
        if not self._found:
            raise ValueError(f"data: {path}: no {HIDDEN_FOLDER}/hs_0.safetensors or any other; compute them first")

    def files(self) -> list[File]:
        """All as one: the tokens by content, the hidden states by number and size, for they are large."""
        digest = hashlib.sha256()
        size = 0
        for row in self._documents():
            digest.update(row.tokens.tobytes() + b";" + (b"" if row.learned is None else row.learned.tobytes()))
        for number in sorted(self._found):
            bytes_ = sample_path(self._path, number).stat().st_size
            digest.update(f"{number} {bytes_};".encode())
            size += bytes_
        return [File(name=self._path.as_posix(), num_bytes=size, sha256=digest.hexdigest())]

    def documents(self, index: int) -> Iterator[Document]:
        """Rows in their order."""
        yield from self._documents()

    def _documents(self) -> Iterator[Tokens]:
        if self._lines is not None:
            yield from (row for row in self._lines.rows() if row.origin in self._found)
            return
        for number in sorted(self._found):
            if number < len(self._rows):
                yield as_row(self._rows[number], f"{self._path}, row {number}", number)


@final
class WithHidden:
    """Rows of a packing, each with its hidden states."""

    def __init__(self, packing: Packing, *, path: str, taps: Sequence[int] | None) -> None:
        self._packing, self._path = packing, Path(path)
        self._taps = tuple(taps) if taps is not None else read_taps(self._path)
        first = sample_path(self._path, int(packing.stored.origin[0]))
        with safe_open(first, framework="pt") as file:
            _, layers, self._hidden_size = file.get_slice("hidden_states").get_shape()
        if layers != len(self._taps):
            raise ValueError(
                f"data: {path}: its files hold {layers} layers, and taps names {len(self._taps)}; name those layers "
                "that they hold, in their order"
            )

    @property
    def num_rows(self) -> int:
        """As many as the packing gives."""
        return self._packing.num_rows

    @property
    def segmented(self) -> bool:
        """As the packing is."""
        return self._packing.segmented

    def row(self, index: int) -> Row:
        """Raises ValueError, naming the file, where one is broken or of other tokens."""
        row, length = self._packing.row(index), self._packing.length
        whole: Tensor | None = None
        at = 0
        for span in self._packing.spans(index):
            path = sample_path(self._path, int(self._packing.stored.origin[span.document]))
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
    """Where the hidden states of a row are."""
    return folder / HIDDEN_FOLDER / f"hs_{number}.safetensors"


def read_taps(folder: Path) -> tuple[int, ...]:
    """Which layers the files of ``folder`` hold. Raises ValueError where nobody has written it down."""
    path = folder / META_FILE
    if not path.exists():
        raise ValueError(
            f"data: {folder}: no {META_FILE} says which layers it holds; give taps, as for vLLM's default of a target "
            "of 32 layers [2, 16, 29, 32]"
        )
    return tuple(json.loads(path.read_text(encoding="utf-8"))["taps"])


def write_sample(folder: Path, number: int, tokens: Tensor, hidden: Tensor) -> None:
    """``tokens`` [T] and ``hidden`` [T, L, H] of a row, moved into place once they are whole."""
    path = sample_path(folder, number)
    part = path.with_suffix(".part")
    save_file({"token_ids": tokens.long().cpu(), "hidden_states": hidden.contiguous().cpu()}, part)
    part.replace(path)


def save_rows(folder: Path) -> bool:
    """rows.jsonl as a saved data set, which speculators' trainer reads; False where ``datasets`` is not installed."""
    try:
        package = need_datasets(str(folder))
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
