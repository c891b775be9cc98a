"""Models of the Hugging Face Hub as local directories. Fetches code only where it is trusted, and runs none.

huggingface_hub is imported where it is asked: a local directory does not need it.
"""

from pathlib import Path

from paceline.models.directory import ModelError

WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt"]
UNWANTED = ["*/*.json", "*/*.safetensors", "consolidated*"]  # other layouts of the same weights
CODE = "*.py"
PICKLES = ["*.bin", "*.pt"]  # of draft heads, where they are asked for


def fetch(repository: str, revision: str | None, *, code: bool = False, pickles: bool = False) -> Path:
    """The directory of ``repository`` at ``revision`` (None is its main branch) in the Hub's cache, fetched if need be.

    With ``code`` the repository's Python files are fetched too, with ``pickles`` pickled weights, otherwise neither.
    With HF_HUB_OFFLINE set nothing is fetched. Raises ModelError, naming the id and the way out, for an id or revision
    that does not exist, access that is not granted, and a Hub that cannot be reached.
    """
    import huggingface_hub

    wanted = [*WANTED, *([CODE] if code else []), *(PICKLES if pickles else [])]
    unwanted = [*UNWANTED, CODE, *PICKLES]
    try:
        folder = huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=wanted,
            ignore_patterns=[pattern for pattern in unwanted if pattern not in wanted],
            # older versions ask the Hub for a commit's files even then
            local_files_only=huggingface_hub.constants.HF_HUB_OFFLINE,
        )
    except Exception as error:  # whatever the layers of the network raise, it has one way out
        raise ModelError(_explain(repository, revision, error)) from error
    return Path(folder)


def _explain(repository: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants, errors

    name = repository if revision is None else f"{repository} at revision {revision!r}"
    match error:
        case errors.HFValidationError():
            return f"no such model directory: {repository}; and no Hub id either: give 'organisation/name'"
        case errors.GatedRepoError():
            return f"{name} is gated on the Hub: accept its terms there and log in with `hf auth login`"
        case errors.RepositoryNotFoundError():
            return (
                f"no such model directory: {name}; and no such model on the Hub, or no access to it: check the id, "
                "log in with `hf auth login` for a private model, or give a local directory"
            )
        case errors.RevisionNotFoundError():
            return f"{name} does not exist on the Hub: check the branch, tag or commit"
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled() if constants.is_offline_mode():
            return (
                f"no such model directory: {name}; and the Hub's cache has no complete copy of it, while "
                "HF_HUB_OFFLINE forbids fetching: unset it, or give a local directory"
            )
        case _:
            return f"{name} could not be fetched from the Hub ({error}); try again, or give a local directory"
