"""Reads a GGUF file, or all parts of a split one, by the ``gguf`` package: metadata at once, tensors one by one."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from paceline.models.directory import ModelError

if TYPE_CHECKING:
    from gguf.gguf_reader import ReaderTensor

EXTRA = "reading GGUF needs gguf; pip install 'paceline[gguf]'"
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
FLOATS = {"F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16}
AGAIN = "fetch it again"


class GgufError(ModelError):
    """A GGUF file that cannot be read or converted, with the reason and the way out."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor that is read from the file when it is asked for. ``shape`` is as torch counts, rows first."""

    name: str
    kind: str  # of its values or blocks, as GGUF names it: F16, Q4_K
    shape: tuple[int, ...]
    stored: "ReaderTensor"

    def values(self) -> Tensor:
        """A copy in the precision of the file; what is quantised is dequantised, in float32."""
        from gguf.quants import dequantize

        if self.kind == "BF16":
            return torch.from_numpy(np.array(self.stored.data)).view(torch.bfloat16)
        if self.kind in FLOATS:
            return torch.from_numpy(np.array(self.stored.data))
        return torch.from_numpy(np.array(dequantize(self.stored.data, self.stored.tensor_type)))


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file holds: ``fields`` are the metadata by their keys, ``tensors`` those of all parts by their names."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the matrices where it is one of floats, bfloat16 where they are quantised."""
        kinds = {tensor.kind for tensor in self.tensors.values() if len(tensor.shape) > 1}
        return FLOATS[kinds.pop()] if len(kinds) == 1 and kinds <= FLOATS.keys() else torch.bfloat16


def read_gguf(path: str | Path) -> GgufFile:
    """The metadata of a file, and its tensors, none of which is read yet.

    Of a split file any part may be given; all must lie in the same folder. Raises GgufError for what is missing, cut
    off, broken, big-endian or quantised in a way that is not known, naming the file.
    """
    if find_spec("gguf") is None:
        raise GgufError(f"{path}: {EXTRA}")
    parts = _parts(Path(path))
    fields: dict[str, Any] = {}
    tensors: dict[str, GgufTensor] = {}
    for part in parts:
        own, stored_tensors = _open(part)
        fields = fields or own  # those of the first part describe the whole
        for stored in stored_tensors:
            if stored.name in tensors:
                raise GgufError(f"{part}: {stored.name} is in another part too; take all parts from one model")
            shape = tuple(int(size) for size in reversed(stored.shape))
            tensors[stored.name] = GgufTensor(stored.name, stored.tensor_type.name, shape, stored)
    _check_kinds(parts[0], tensors)
    count = fields.get("split.tensors.count", len(tensors))
    if count != len(tensors):
        raise GgufError(f"{path}: its parts hold {len(tensors)} tensors, and the first says {count}; {AGAIN}")
    return GgufFile(parts[0], fields, tensors)


def _parts(path: Path) -> list[Path]:
    """All files of the model that ``path`` belongs to, in order."""
    if not path.is_file():
        raise GgufError(f"{path}: no such file; give a GGUF file")
    found = PART.search(path.name)
    if found is None:
        return [path]
    title, count = path.name[: found.start()], int(found[2])
    parts = [path.with_name(f"{title}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing or not parts:
        raise GgufError(f"{path}: part {missing[0] if missing else '1'} of {count} is not beside it; fetch all parts")
    return parts


def _open(path: Path) -> "tuple[dict[str, Any], list[ReaderTensor]]":
    from gguf import GGUFEndian, GGUFReader

    class Reader(GGUFReader):
        """The package's reader, for which a cut file is only shorter: it would count through what is not there."""

        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError(f"it ends after {len(self.data)} bytes, before what its header announces")
            return super()._get(offset, dtype, count, override_order)

    try:
        reader: GGUFReader = Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise GgufError(f"{path} is not a whole GGUF file ({reason}); {AGAIN}") from error
    if reader.endianess != (GGUFEndian.LITTLE if sys.byteorder == "little" else GGUFEndian.BIG):
        raise GgufError(f"{path} has the other order of bytes; convert it in place: gguf-convert-endian FILE native")
    return fields, reader.tensors


def _check_kinds(path: Path, tensors: Mapping[str, GgufTensor]) -> None:
    """Raise GgufError naming a tensor whose blocks ``gguf`` does not know how to dequantise."""
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    for tensor in {tensor.kind: tensor for tensor in tensors.values() if tensor.kind not in FLOATS}.values():
        kind = tensor.stored.tensor_type
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            raise GgufError(
                f"{path}: {tensor.name} is stored as {tensor.kind}, which cannot be dequantised here; take another "
                "quantisation of the model, such as Q8_0 or Q4_K_M"
            ) from error
