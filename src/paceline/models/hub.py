"""Models of the Hugging Face Hub as local directories. Fetches code only where it is trusted, and runs none."""

from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from paceline.models.loading import ModelError

WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt"]
UNWANTED = ["*/*.json", "*/*.safetensors", "consolidated*", "*.bin"]  # other layouts of the same weights
CODE = "*.py"


def is_hub_id(model: str | Path) -> bool:
    """Whether ``model`` can only mean an id on the Hub: a string that names nothing here and looks like no path."""
    if not isinstance(model, str) or Path(model).exists():
        return False
    return not (Path(model).is_absolute() or model.startswith((".", "~")) or model.count("/") > 1)


def fetch(repository: str, revision: str | None, *, code: bool = False) -> Path:
    """The directory of ``repository`` at ``revision`` (None is its main branch) in the Hub's cache, fetched if need be.

    With ``code`` the repository's Python files are fetched too, otherwise none. With HF_HUB_OFFLINE set nothing is
    fetched. Raises ModelError, naming the id and the way out, for an id or revision that does not exist, access that is
    not granted, and a Hub that cannot be reached.
    """
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=[*WANTED, CODE] if code else WANTED,
            ignore_patterns=UNWANTED if code else [*UNWANTED, CODE],
            local_files_only=constants.HF_HUB_OFFLINE,  # older versions ask the Hub for a commit's files even then
        )
    except Exception as error:  # whatever the layers of the network raise, it has one way out
        raise ModelError(_explain(repository, revision, error)) from error
    return Path(folder)


def _explain(repository: str, revision: str | None, error: Exception) -> str:
    name = repository if revision is None else f"{repository} at revision {revision!r}"
    match error:
        case HFValidationError():
            return f"no such model directory: {repository}; and no Hub id either: give 'organisation/name'"
        case GatedRepoError():
            return f"{name} is gated on the Hub: accept its terms there and log in with `hf auth login`"
        case RepositoryNotFoundError():
            return (
                f"no such model directory: {name}; and no such model on the Hub, or no access to it: check the id, "
                "log in with `hf auth login` for a private model, or give a local directory"
            )
        case RevisionNotFoundError():
            return f"{name} does not exist on the Hub: check the branch, tag or commit"
        case LocalEntryNotFoundError() | OfflineModeIsEnabled() if constants.is_offline_mode():
            return (
                f"no such model directory: {name}; and the Hub's cache has no complete copy of it, while "
                "HF_HUB_OFFLINE forbids fetching: unset it, or give a local directory"
            )
        case _:
            return f"{name} could not be fetched from the Hub ({error}); try again, or give a local directory"
