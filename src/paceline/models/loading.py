"""Loads Hugging Face checkpoint directories as native decoders, and saves them.

Reads config.json and safetensors (single or sharded); refuses anything else by name.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.models import memory
from paceline.models.directory import ModelError as ModelError
from paceline.models.directory import read_config as read_config
from paceline.models.draft_layers import is_draft_tensor
from paceline.models.families import FAMILIES, Family
from paceline.models.families.base import COPY
from paceline.models.native.decoder import DecoderConfig, DecoderLM
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.models.native.fused_weights import fuse_parts, fused_groups, split_parts
from paceline.models.native.quantization import check_quantization, quantise, replace_linears

FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
GIB = 2**30
ONE_TABLE = (
    "the native decoder has one table of embeddings for encoder and decoder; give a checkpoint whose tables are equal"
)
ONE_CHECKPOINT = "take config.json and all files of weights from one checkpoint"


def find_family(config: dict[str, object], path: Path | str) -> Family:
    """The native family of a config. Raises ModelError naming those that are known."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ModelError(f"unsupported architecture {kind!r} in {path}; supported: {known}")
    return FAMILIES[str(kind)]


def configure(config: dict[str, object], path: Path | str) -> DecoderConfig:
    """The decoder that a config describes. Raises ModelError naming the field that is missing or not supported."""
    family = find_family(config, path)
    if config.get("quantization_config"):
        raise ModelError(f"{path}: quantized weights (quantization_config) are not supported; give unquantized ones")
    try:
        return family.configure(config)
    except (KeyError, ValueError) as error:
        lacks = f"config.json lacks {error}: add it, or take the model's own config.json again"
        reason = lacks if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{path}: {reason}") from error


def load(
    path: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    quantization: str | None = None,
) -> DecoderLM:
    """Load a checkpoint directory. ``dtype`` None keeps the precision of the files; ``quantization``
    (models/native/quantization) is of the matrices in that precision.

    Raises ModelError for a missing or unreadable directory, an unsupported architecture or option, tensors that are
    missing, superfluous or of another shape than the config says, and weights that exceed the device's free memory.
    All of this is found in the headers, before any weight is read.
    """
    check_quantization(quantization)
    path, device = Path(path), torch.device(device)
    raw = read_config(path)
    family, config = find_family(raw, path), configure(raw, path)
    headers: dict[str, Tensor] = {}
    stored: dict[str, str] = {}  # the files' names of our own
    for name, header in _headers(path):
        if is_draft_tensor(name, raw):
            continue
        for own, part in family.read(name, header):
            headers[own], stored[own] = part, name
    if config.cross is not None and "head.weight" in headers:  # configs of encoder-decoders do not tell
        config = replace(config, tied_head=False)
    added = {own: part for own, part in family.unstored(config).items() if own not in headers}
    tied = raw.get("tie_word_embeddings") is not False  # and so whatever a file has for its copies is not read
    copies = [own for own in headers if own.endswith(COPY)]
    unread = {*_skipped(config), *(copies if tied else ())}
    kept = {stored[own]: part for own, part in headers.items() if own not in unread}
    headers = {own: part for own, part in headers.items() if own not in copies} | added
    check(config, headers, path=path, stored=lambda: {**stored_names(family, config), **stored})
    _check_precision(kept, dtype, device, path)
    state: dict[str, Tensor] = {}
    for name, tensor in _tensors(path, wanted=set(kept)):
        for own, part in family.read(name, tensor):
            if own not in unread:
                state[own] = part.to(device=device, dtype=dtype).contiguous()
    stored_dtype = next(iter(state.values())).dtype
    state |= {own: part.to(device=device, dtype=stored_dtype) for own, part in added.items()}
    for own in state.keys() & set(copies):
        if not torch.equal(state.pop(own), state["embed.weight"]):
            raise ModelError(f"{path}: {stored[own]} differs from {stored['embed.weight']}: {ONE_TABLE}")
    whole = fuse_parts(state)
    if quantization is not None:
        whole = quantise(whole, quantization, tied_head=config.tied_head)
    settled = memory.copy_to_huge_pages(whole) if device.type == "cpu" else whole
    return assemble(config, settled, device=device, quantization=quantization)


def build(
    config: DecoderConfig, state: dict[str, Tensor], *, path: Path | str = "model", device: torch.device | str = "cpu"
) -> DecoderLM:
    """A decoder in evaluation mode from a config and its parts (fused_weights); ``path`` only names it in errors.

    Raises ModelError if parts are missing, superfluous or of another shape than the config says.
    """
    check(config, state, path=path)
    skipped = _skipped(config)
    return assemble(config, fuse_parts({own: part for own, part in state.items() if own not in skipped}), device=device)


def check(
    config: DecoderConfig,
    state: dict[str, Tensor],
    *,
    path: Path | str,
    stored: Callable[[], Mapping[str, str]] = dict[str, str],
) -> None:
    """Raise ModelError unless ``state`` has exactly the parts, packed or not, that ``config`` asks for.

    Messages call them by what ``stored`` returns for our names, which is what they are called in the checkpoint.
    """
    with torch.device("meta"):
        whole = make_decoder(config).state_dict()
    wanted: dict[str, tuple[int, ...]] = {}
    for name, tensor in whole.items():
        parts = {name: tensor} if name in state else split_parts(config, {name: tensor})
        wanted.update({part: tuple(piece.shape) for part, piece in parts.items()})
    given = state.keys() - _skipped(config)
    missing, extra = wanted.keys() - given, given - wanted.keys()
    if missing or extra:
        names = stored()
        lists = [
            f"{what} {listing(names.get(own, own) for own in owns)}"
            for what, owns in (("lack", missing), ("hold also", extra))
            if owns
        ]
        raise ModelError(f"{path}: the weights do not fit config.json: they {' and '.join(lists)}; {ONE_CHECKPOINT}")
    for own, shape in wanted.items():
        if tuple(state[own].shape) != shape:
            name = stored().get(own, own)
            found = tuple(state[own].shape)
            raise ModelError(f"{path}: {name} has shape {found}, config.json asks for {shape}; {ONE_CHECKPOINT}")


def assemble(
    config: DecoderConfig, state: dict[str, Tensor], *, device: torch.device | str, quantization: str | None = None
) -> DecoderLM:
    """A decoder in evaluation mode that holds the tensors of ``state``, fused already (models/native/fused_weights).

    With ``quantization`` they are those of ``quantise`` (models/native/quantization).
    """
    model = build_on_meta(config, quantization=quantization)
    model.load_state_dict(state, assign=True)
    return model.to(device).requires_grad_(False).eval()


def build_on_meta(
    config: DecoderConfig, *, dtype: torch.dtype = torch.float32, quantization: str | None = None
) -> DecoderLM:
    """A decoder of the right shapes and precisions on the meta device, without content."""
    with torch.device("meta"):
        model = make_decoder(config)
    model = model.to(dtype)  # not within: angles are made anew there from the config
    with torch.device("meta"):
        if quantization is not None:
            model.head = model.head or nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            replace_linears(model, quantization)
    return model


def save(model: DecoderLM, raw: dict[str, object], path: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``model`` as a Hugging Face directory with ``raw`` as its config.json."""
    family = find_family(raw, path)
    path.mkdir(parents=True, exist_ok=True)
    parts = split_parts(model.config, model.state_dict())
    state = {own: tensor.detach().to("cpu", dtype).contiguous() for own, tensor in parts.items()}
    weights = path / "model.safetensors"
    save_file(family.write(state), weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # the library keeps its files to their owner; a published model is for everybody
    (path / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def make_decoder(config: DecoderConfig) -> DecoderLM:
    """A decoder without content; with its encoder, if it attends to one's states."""
    return DecoderLM(config) if config.cross is None else EncoderDecoderLM(config)


def _skipped(config: DecoderConfig) -> frozenset[str]:
    return frozenset({"head.weight"} if config.tied_head else ())


def _check_precision(
    parts: dict[str, Tensor], dtype: torch.dtype | None, device: torch.device, path: Path | str
) -> None:
    """Raise ModelError unless the weights are plain floats of one precision, and fit."""
    whole = next((own for own, part in parts.items() if not part.is_floating_point()), None)
    if whole is not None:
        raise ModelError(f"{path}: {whole} holds no floats of 16 to 64 bits: quantized weights are not supported")
    found = {part.dtype for part in parts.values()}
    if dtype is None and len(found) > 1:
        names = ", ".join(sorted(dtype_name(one) for one in found))
        raise ModelError(f"{path}: its tensors differ in precision ({names}); give dtype='float32' or another")
    needed = sum(part.numel() * (dtype or part.dtype).itemsize for part in parts.values())
    free = memory.free_memory(device)
    if needed > free:
        wide = (dtype or max(found, key=lambda one: one.itemsize)).itemsize > 2
        remedy = "give dtype='bfloat16' or a larger machine" if wide else "give a smaller model or a larger machine"
        sizes = f"{needed / GIB:.3g} GiB exceed the {free / GIB:.3g} GiB free on {device}"
        raise ModelError(f"{path}: weights of {sizes}: {remedy}")


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def _headers(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors without content: what is no plain float is uint8 here."""

    def read(opened: Any, name: str) -> Tensor:
        header = opened.get_slice(name)
        return torch.empty(header.get_shape(), dtype=FLOATS.get(header.get_dtype(), torch.uint8), device="meta")

    return _read(path, read)


def _tensors(path: Path, *, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    return _read(path, lambda opened, name: opened.get_tensor(name), wanted=wanted)


def _read(
    path: Path, read: Callable[[Any, str], Tensor], *, wanted: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The tensors called ``wanted`` (None: all)."""
    for file in _files(path):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():
                    if wanted is None or name in wanted:
                        yield name, read(opened, name)
        except SafetensorError as error:
            raise ModelError(f"{file} is not a safetensors file ({error})") from error


def _files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    single = path / "model.safetensors"
    if single.is_file() and not index.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(
            f"{path} holds no weights, neither {single.name} nor {index.name}; fetch them, or convert pickled ones "
            "(*.bin, *.pt) with AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is no index of shards; save the model again with save_pretrained") from error
    files = [path / Path(name).name for name in names]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{path}: shard {file.name} is named in {index.name} but missing")
    return files


def stored_tensors(family: Family, config: DecoderConfig) -> dict[str, Tensor]:
    """The tensors of a checkpoint by their names, without content."""
    return family.write(_parts(config))


def stored_names(family: Family, config: DecoderConfig) -> dict[str, str]:
    """The names in a checkpoint of our own tensors and of their parts."""
    parts, stored = _parts(config), stored_tensors(family, config)
    names = {own: name for name, tensor in stored.items() for own, _ in family.read(name, tensor)}
    for fused, pieces in fused_groups(parts):
        if fused in names:
            names.update(dict.fromkeys(pieces, names[fused]))
    return names


def _parts(config: DecoderConfig) -> dict[str, Tensor]:
    with torch.device("meta"):
        return split_parts(config, make_decoder(config).state_dict())


def listing(names: Iterable[str]) -> str:
    """Three of ``names`` and how many others there are."""
    ordered = sorted(set(names))
    more = len(ordered) - 3
    return ", ".join(ordered[:3]) + (f" and {more} other{'s' if more > 1 else ''}" if more > 0 else "")
