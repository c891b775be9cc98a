"""Saves and loads draft heads as directories: config.json and model.safetensors.

A head belongs to one target, whose fingerprint (models/fingerprint) is saved; it is refused for any other. Heads of
other projects (``formats``) are loaded too; they have no fingerprint, so their sizes and vocabulary are compared.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline import __version__
from paceline.draft_heads import DRAFT_HEADS
from paceline.draft_heads.base import DraftHead, DraftHeadConfig, reduce_by_file
from paceline.draft_heads.formats.base import FormatError, Imported
from paceline.draft_heads.formats.detection import read_foreign
from paceline.draft_heads.layers import DRAFT_IDS
from paceline.models.directory import CONFIG, is_own_head
from paceline.models.directory import HEAD_TYPE as MODEL_TYPE
from paceline.models.directory import is_head as is_head
from paceline.models.draft_layers import holds_draft_layers
from paceline.models.fingerprint import Fingerprint, fingerprint
from paceline.models.native.decoder import DecoderLM

WEIGHTS = "model.safetensors"
AGAIN = "save the head again"


class HeadError(ValueError):
    """A head's directory that cannot be used, with the reason and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """The record in a head's config.json."""

    kind: str
    config: DraftHeadConfig
    target: str  # the name of the model that it was made for
    fingerprint: Fingerprint
    version: str  # of Paceline


def save_head(head: DraftHead, path: str | Path, *, target_name: str, fingerprint: Fingerprint) -> None:
    """Write the own parts of ``head`` into the directory ``path``, which is made where it is missing.

    Each file is whole or not there, and files of two different writings are not taken for a head. Other files stay.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    made = {"kind": head.kind, "config": head.config.model_dump(mode="json")}
    record = {
        "model_type": MODEL_TYPE,
        **made,
        "target": {"name": target_name, "fingerprint": fingerprint.fields()},
        "paceline": __version__,
    }
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in head.own_state().items()}
    metadata = {"format": "pt", MODEL_TYPE: json.dumps(made, sort_keys=True)}
    _replace(path / WEIGHTS, lambda aside: save_file(state, aside, metadata=metadata))
    text = json.dumps(record, indent=2) + "\n"
    _replace(path / CONFIG, lambda aside: aside.write_text(text, encoding="utf-8"))


def read_head_config(path: str | Path) -> HeadRecord:
    """What the config.json of a head's directory says. Raises HeadError for what is missing, broken or unknown."""
    path = Path(path)
    if not is_own_head(path):
        raise HeadError(
            f"{path} is no head: it has no {CONFIG} with model_type {MODEL_TYPE!r}; give a directory that "
            "paceline train wrote"
        )
    found = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    try:
        kind, values = found["kind"], found["config"]
        name, fields = found["target"]["name"], found["target"]["fingerprint"]
        record = Fingerprint(sizes=fields["sizes"], kept=fields["kept"], matrices=fields["matrices"])
    except (KeyError, TypeError) as error:
        raise HeadError(f"{path / CONFIG} lacks {error}: {AGAIN}") from error
    if kind not in DRAFT_HEADS:
        raise HeadError(f"{path}: a head of the kind {kind!r}, and known are {', '.join(DRAFT_HEADS)}; update Paceline")
    try:
        config = DRAFT_HEADS.find(kind).Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"])) or "config"
        raise HeadError(f"{path / CONFIG}: {at}={first['input']!r}: {first['msg']}; update Paceline") from error
    version = str(found.get("paceline", "an unknown version"))
    return HeadRecord(kind=kind, config=config, target=str(name), fingerprint=record, version=version)


def load_head(
    path: str | Path, target: DecoderLM, *, target_name: str = "this model", pickles: bool = False
) -> DraftHead:
    """The head of the directory ``path`` around ``target``, in its precision, on its device, in evaluation mode.

    It may be another project's, by ``formats.detection``; of these only, ``pickles`` allows pickled weights. Of a model
    with layers of multi-token prediction it is these.

    Raises HeadError for files that are missing, broken or not of one writing, for weights that do not fit the config,
    and for a head of another target than ``target``, which messages call ``target_name``; FormatError for other
    projects' heads, as ``read_foreign`` does.
    """
    path = Path(path)
    if (is_head(path) and not is_own_head(path)) or holds_draft_layers(path):
        return build_imported(read_foreign(path, target, pickles=pickles).imported, target, path=path)
    record = read_head_config(path)
    own = fingerprint(target)
    if not record.fingerprint.matches(own):
        raise HeadError(
            f"{path} is a head of {record.target} ({record.fingerprint.sizes}) and not of {target_name} "
            f"({own.sizes}), whose weights are others; give {record.target} as the target, or train a head for "
            f"{target_name}"
        )
    state = _read_weights(path, record)
    try:
        config, added = reduce_by_file(record.config, path, target_size=target.vocab_size)
    except ValueError as error:
        raise HeadError(str(error)) from error
    try:
        return _build(record.kind, config, {**state, **added}, target)
    except ValueError as error:
        raise HeadError(f"{path / WEIGHTS} does not fit {CONFIG}: {error}; {AGAIN}") from error


def build_imported(imported: Imported, target: DecoderLM, *, path: str | Path) -> DraftHead:
    """The head of another project's files, which lie at ``path``, around ``target``, as ``load_head`` returns it.

    Raises FormatError for a configuration that does not fit the target.
    """
    try:
        return _build(imported.kind, imported.config, imported.state, target)
    except ValueError as error:
        raise FormatError(f"{path}, a {imported.kind} head, does not fit its config or this target: {error}") from error


def _build(kind: str, config: DraftHeadConfig, state: Mapping[str, Tensor], target: DecoderLM) -> DraftHead:
    """Raises ValueError for a configuration that does not fit ``target``, and for tensors that do not fit it."""
    # These random weights are replaced by the saved ones.
    head: DraftHead = DRAFT_HEADS.find(kind).make(config, target, generator=torch.Generator().manual_seed(0))
    head.load_own_state({name: _on(target, part) for name, part in state.items()})
    return head.requires_grad_(False).eval()


def _read_weights(path: Path, record: HeadRecord) -> dict[str, Tensor]:
    """The tensors, if they were written together with the config."""
    file = path / WEIGHTS
    if not file.is_file():
        raise HeadError(f"{path} lacks {WEIGHTS}: {AGAIN}")
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            state = {name: opened.get_tensor(name) for name in opened.keys()}
    except SafetensorError as error:
        raise HeadError(f"{file} is not a safetensors file ({error}): {AGAIN}") from error
    made = json.loads(metadata.get(MODEL_TYPE, "{}"))
    if made.get("kind") != record.kind or type(record.config).model_validate(made["config"]) != record.config:
        raise HeadError(f"{path}: {WEIGHTS} and {CONFIG} are not of one head: {AGAIN}")
    whole = next((name for name, part in state.items() if not part.is_floating_point() and name != DRAFT_IDS), None)
    if whole is not None:
        raise HeadError(f"{file}: {whole} holds no floats: {AGAIN}")
    return state


def _on(target: DecoderLM, part: Tensor) -> Tensor:
    """On the target's device, and in its precision if it is not of integers."""
    return part.to(target.device, target.dtype if part.is_floating_point() else part.dtype)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file by ``write`` and move it to ``path`` once it is on the disk."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(aside)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.chmod(0o644)  # safetensors makes files private; a published head is readable by everyone
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
