"""The files of a draft head as other projects save it: config.json and tensors by name, read one by one.

Safetensors are read, in one file or in shards; pickles only where they are asked for, by torch's weights-only loader.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

CONFIG = "config.json"
NAMES = ("model", "pytorch_model", "medusa_lm_head", "hydra_lm_head")  # of files of weights, without their endings
EXTRA = ("mask_embedding",)  # of files beside the weights
_INDEXED = ("model.safetensors", "pytorch_model.bin")  # which may be saved in shards
FETCH_AGAIN = "take all files of the head from one checkpoint again"
PRECISIONS = {  # by their names in safetensors
    **{"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16},
    **{"I64": torch.int64, "I32": torch.int32, "BOOL": torch.bool},
}

T = TypeVar("T", int, float, str, bool)


class FormatError(ValueError):
    """A head that cannot be read or written in a format, with the reason and the way out."""


@final
class HeadFiles:
    """A directory with a head's config.json and weights. Tensors are loaded one by one, by ``tensor``.

    ``config`` is {} where there is no config.json. ``headers`` are the tensors by name, without content (on the meta
    device), sorted; ``weights`` are the files that they are in. ``pickles`` allows *.bin and *.pt where there are no
    safetensors. Raises FormatError for a directory without weights that may be read, and for files that are missing,
    broken or truncated.
    """

    def __init__(self, path: str | Path, *, pickles: bool = False) -> None:
        self.path = Path(path)
        self.pickles = pickles
        self.config = _read_config(self.path)
        self._pickled: dict[str, Tensor] = {}
        self._file: dict[str, Path] = {}  # of each tensor in safetensors
        self.weights = tuple(_find_weights(self.path, pickles))
        headers: dict[str, Tensor] = {}
        for file in self.weights:
            if file.suffix == ".safetensors":
                found = _read_headers(file)
                self._file.update(dict.fromkeys(found, file))
            else:
                found = self._unpickle(file)
            twice = headers.keys() & found.keys()
            if twice:
                raise FormatError(f"{self.path}: {min(twice)} is in two of its files; {FETCH_AGAIN}")
            headers.update(found)
        self._check_index(headers)
        self.headers: Mapping[str, Tensor] = dict(sorted(headers.items()))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors by name."""
        return {name: tuple(header.shape) for name, header in self.headers.items()}

    @property
    def architectures(self) -> tuple[str, ...]:
        """The ``architectures`` of the config."""
        found = self.config.get("architectures")
        return tuple(map(str, cast("list[object]", found))) if isinstance(found, list) else ()

    @property
    def speculators_type(self) -> str | None:
        """The ``speculators_model_type`` of the config: the head is one of the package speculators."""
        return self.value("speculators_model_type", str)

    def has(self, *names: str) -> bool:
        """Whether there are tensors of all these names."""
        return all(name in self.headers for name in names)

    def tensor(self, name: str) -> Tensor:
        """The tensor called ``name``, on the CPU as it was saved. Raises FormatError where there is none."""
        if name in self._pickled:
            return self._pickled[name]
        if name not in self._file:
            raise FormatError(f"{self.path} lacks the tensor {name}; {FETCH_AGAIN}")
        try:
            with safe_open(self._file[name], framework="pt") as opened:
                return opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{self._file[name]} cannot be read ({error}); {FETCH_AGAIN}") from error

    def extra(self, name: str) -> dict[str, Any] | None:
        """What the pickled file ``name``.pt beside the weights holds, None where there is no such file.

        Raises FormatError where there is one and pickles are not asked for.
        """
        file = self.path / f"{name}.pt"
        if not file.is_file():
            return None
        if not self.pickles:
            raise FormatError(f"{self.path} has a pickled {file.name}: {_asking(self.path)}")
        return _load_pickle(file)

    def value(self, key: str, kind: type[T]) -> T | None:
        """The config's value at ``key``, in which dots lead into mappings: "dflash_config.mask_token_id"; None where
        there is none or null. Raises FormatError for one of another type than ``kind``.
        """
        found = self._at(key)
        if found is None:
            return None
        if kind is float and isinstance(found, int) and not isinstance(found, bool):
            return cast("T", float(found))
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise FormatError(f"{self.path / CONFIG}: {key}={found!r}: {kind.__name__} is wanted; correct it")
        return found

    def required(self, key: str, kind: type[T]) -> T:
        """As ``value``. Raises FormatError also where there is none."""
        found = self.value(key, kind)
        if found is None:
            raise FormatError(f"{self.path / CONFIG} lacks {key}, which this head needs; {FETCH_AGAIN}")
        return found

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers at ``key``, as ``value`` finds it."""
        found = self._at(key)
        if found is None:
            return None
        entries = cast("list[object]", found) if isinstance(found, list) else []
        if not entries or not all(isinstance(one, int) and not isinstance(one, bool) for one in entries):
            raise FormatError(f"{self.path / CONFIG}: {key}={found!r}: a list of integers is wanted; correct it")
        return tuple(cast("list[int]", entries))

    def mapping(self, key: str) -> Mapping[str, object]:
        """The mapping at ``key``, {} where there is none."""
        found = self._at(key)
        if found is not None and not isinstance(found, dict):
            raise FormatError(f"{self.path / CONFIG}: {key}={found!r}: a mapping is wanted; correct it")
        return cast("dict[str, object]", found or {})

    def _at(self, key: str) -> object:
        found: object = self.config
        for part in key.split("."):
            if not isinstance(found, Mapping):
                return None
            found = cast("Mapping[str, object]", found).get(part)
        return found

    def _unpickle(self, file: Path) -> dict[str, Tensor]:
        state = _load_pickle(file)
        other = next((name for name, one in state.items() if not isinstance(one, Tensor)), None)
        if other is not None:
            raise FormatError(f"{file}: {other} is no tensor, so this is not the state of a head; give its weights")
        self._pickled.update(state)
        return {name: one.to("meta") for name, one in state.items()}

    def _check_index(self, headers: Mapping[str, Tensor]) -> None:
        """Raise FormatError where the index of shards names tensors that no shard has."""
        for file in self._indices():
            missing = sorted(_read_index(file).keys() - headers.keys())
            if missing:
                raise FormatError(f"{self.path}: no shard has {missing[0]}, which {file.name} names; {FETCH_AGAIN}")

    def _indices(self) -> list[Path]:
        return [file for file in (self.path / f"{name}.index.json" for name in _INDEXED) if file.is_file()][:1]


def _find_weights(path: Path, pickles: bool) -> list[Path]:
    """The files of weights: shards, else one of safetensors, else pickled ones. Raises FormatError for none."""
    if not path.is_dir():
        raise FormatError(f"no such directory of a head: {path}")
    for indexed in _INDEXED:
        index = path / f"{indexed}.index.json"
        pickled = not indexed.endswith(".safetensors")
        if index.is_file() and (pickles or not pickled):
            return _find_shards(index)
    named = (path / f"{name}.safetensors" for name in NAMES)
    found = [file for file in named if file.is_file()] or sorted(path.glob("*.safetensors"))
    if found:
        return _only(path, found)
    pickled = [file for end in ("*.bin", "*.pt") for file in sorted(path.glob(end)) if file.stem not in EXTRA]
    if not pickled:
        raise FormatError(f"{path} holds no weights of a head, neither *.safetensors nor *.bin or *.pt; {FETCH_AGAIN}")
    if not pickles:
        raise FormatError(f"{path} holds only pickled weights ({pickled[0].name}): {_asking(path)}")
    return _only(path, [file for file in pickled if file.stem in NAMES] or pickled)


def _only(path: Path, files: list[Path]) -> list[Path]:
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:3])
        raise FormatError(f"{path} holds several files of weights ({names}) and no index; leave one of them there")
    return files


def _asking(path: Path) -> str:
    return (
        "pickles are read only when asked for, by torch's weights-only loader; convert them once with "
        f"paceline export {path} --pickles"
    )


def _find_shards(index: Path) -> list[Path]:
    files = sorted({index.parent / Path(name).name for name in _read_index(index).values()})
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise FormatError(f"{index.parent}: {missing.name} is named in {index.name} but missing; {FETCH_AGAIN}")
    return files


def _read_index(file: Path) -> dict[str, str]:
    """The file of each tensor."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(shard) for name, shard in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{file} is no index of shards; {FETCH_AGAIN}") from error


def _read_config(path: Path) -> Mapping[str, object]:
    file = path / CONFIG
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # broken JSON, or bytes that are no text
        raise FormatError(f"{file} is not JSON ({error}); {FETCH_AGAIN}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{file} holds no JSON object; {FETCH_AGAIN}")
    return cast("dict[str, object]", found)


def _read_headers(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            return {name: _header(file, name, one) for name, one in slices.items()}
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{file} is broken or truncated ({error}); {FETCH_AGAIN}") from error


def _header(file: Path, name: str, found: Any) -> Tensor:
    precision = str(found.get_dtype())
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise FormatError(f"{file}: {name} is of {precision}, and known are {known}; give unquantised weights")
    return torch.empty(found.get_shape(), dtype=PRECISIONS[precision], device="meta")


def _load_pickle(file: Path) -> dict[str, Any]:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle raises anything
        said = str(error).partition("\n")[0]
        raise FormatError(
            f"{file} is broken, truncated or more than tensors by name ({type(error).__name__}: {said}); {FETCH_AGAIN}"
        ) from error
    if not isinstance(found, dict):
        raise FormatError(f"{file} holds a {type(found).__name__} and not tensors by name; save its state_dict")
    return cast("dict[str, Any]", found)
