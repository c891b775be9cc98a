"""What a draft head is, ours or another project's, and everything that was assumed to read it."""

from pathlib import Path

from paceline.api.export import read_head
from paceline.api.loading import Loaded
from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.files import read_head_config
from paceline.draft_heads.formats.base import Imported
from paceline.draft_heads.formats.detection import detect
from paceline.draft_heads.formats.head_files import HeadFiles
from paceline.models.directory import is_own_head
from paceline.models.loading import dtype_name

TARGET_KEYS = (  # of the target's name in other projects' configs
    "speculators_config.verifier.name_or_path",
    "base_model_name_or_path",
    "base_model",
)


def describe_head(
    path: Path, *, name: str, target: Loaded | None = None, pickles: bool = False
) -> dict[str, dict[str, object]]:
    """Facts by section: the head; with ``target``, for which it is loaded, of another project's also its assumptions,
    each a value and where that comes from, and its tensors that are not read.

    ``name`` is what it is called. Raises ValueError for files that are missing or broken, for a kind that is not
    supported, and for a head of another target.
    """
    read = None if target is None else read_head(path, target=target, pickles=pickles)
    if is_own_head(path):
        return {"head": _describe_own(path, name, None if read is None else read.head)}
    if read is None or read.foreign is None:
        files = HeadFiles(path, pickles=pickles)
        found = detect(files)
        return {"head": {"name": name, "format": found.title, "of": _named_target(files), **_sizes(files)}}
    files, found = read.foreign.files, read.foreign.imported
    return {
        "head": {
            "name": name,
            "kind": found.kind,
            "format": read.foreign.format.title,
            "of": found.target_name or _named_target(files),
            "hidden_states": list(read.head.taps),
            "advised_tokens": found.num_draft_tokens,
            **_sizes(files, found.within),
        },
        "assumptions": _assumptions(found),
        "tensors": {
            "read": sum(name.startswith(found.within) for name in files.headers) - len(found.ignored),
            "ignored": list(found.ignored),
            "tied": list(found.tied),
        },
    }


def _assumptions(found: Imported) -> dict[str, object]:
    """Every field of the configuration, as the format says where it comes from, and what the format adds."""
    said = {one.name: {"value": one.value, "from": one.source} for one in found.assumptions}
    fields = found.config.model_dump(mode="json")
    unsaid = {name: {"value": value, "from": "default"} for name, value in fields.items() if name not in said}
    return {**said, **unsaid}


def _describe_own(path: Path, name: str, head: DraftHead | None) -> dict[str, object]:
    record, files = read_head_config(path), HeadFiles(path)
    config = record.config if head is None else head.config
    return {
        "name": name,
        "kind": record.kind,
        "of": record.target,
        "of_sizes": record.fingerprint.sizes,
        **config.model_dump(mode="json"),
        **_sizes(files),
        "paceline": record.version,
    }


def _sizes(files: HeadFiles, within: str = "") -> dict[str, object]:
    """Of the tensors whose names begin with ``within``; the others in the files are the target's."""
    headers = [header for name, header in files.headers.items() if name.startswith(within)]
    stored = sum(file.stat().st_size for file in files.weights)
    return {
        "parameters": sum(header.numel() for header in headers if header.is_floating_point()),
        "precision": sorted({dtype_name(header.dtype) for header in headers}),
        "size_on_disk": sum(header.numel() * header.itemsize for header in headers) if within else stored,
    }


def _named_target(files: HeadFiles) -> str | None:
    return next((found for key in TARGET_KEYS if (found := files.value(key, str)) is not None), None)
