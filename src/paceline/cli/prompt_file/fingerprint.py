"""A hash of everything that determines the outputs of a run over many prompts. Loads no weights."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from paceline.api import build_verifier
from paceline.api.drafter_files import file_digest
from paceline.cli.draft_options import DraftOptions
from paceline.cli.options import ModelOptions
from paceline.models import hub
from paceline.models.directory import is_hub_id

WEIGHTS = ".safetensors"


def fingerprint(model: ModelOptions, drafting: DraftOptions, options: Mapping[str, object]) -> str:
    """A hash for each of PARTS (journal), joined by dashes. ``options`` are those that hold for every prompt.

    The drafter is included only where tokens depend on it: with the verifier "coupled" they do not. Raises what loading
    raises for a model that is not there.
    """
    verifier = build_verifier(drafting.verifier)
    drafted: dict[str, object] = {"verifier": drafting.verifier}
    if not verifier.same_tokens:
        drafted["drafter"], drafted["num_draft_tokens"] = drafting.drafter, drafting.count
        if drafting.drafter is not None and (code := file_digest(drafting.drafter)) is not None:
            drafted["drafter_file"] = code
        drafted["draft"] = None if drafting.draft is None else _files(drafting.draft, None)
        if drafting.draft_quantization is not None:
            drafted["draft_quantization"] = drafting.draft_quantization
    own: dict[str, object] = {
        "dtype": model.dtype,
        "files": _files(model.model, model.revision, code=model.trust_remote_code),
    }
    for name in ("enforce_eager", "quantization", "backend"):  # another backend rounds otherwise
        if getattr(model, name) not in (False, None, "auto"):
            own[name] = getattr(model, name)
    parts = (own, options, drafted)
    return "-".join(_hash(part) for part in parts)


def model_hash(model: ModelOptions) -> str:
    """Of a model's files, weights by size and time."""
    return _hash({"files": _files(model.model, model.revision)})


def _files(model: str, revision: str | None, *, code: bool = False) -> list[list[object]]:
    """Every file that defines a model: weights by size and time, small ones by content; code where it runs."""
    folder = hub.fetch(model, revision, code=code) if is_hub_id(model) else Path(model)
    patterns = [*hub.WANTED, hub.CODE] if code else hub.WANTED
    names = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return [_facts(path) for path in dict.fromkeys(names)]


def _facts(path: Path) -> list[object]:
    if path.suffix == WEIGHTS:
        facts = path.stat()
        return [path.name, facts.st_size, facts.st_mtime_ns]
    return [path.name, hashlib.sha256(path.read_bytes()).hexdigest()]


def _hash(value: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
