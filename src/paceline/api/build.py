"""Drafters and verifiers from what users write: a name, a directory, a loaded model. Decodes nothing."""

from pathlib import Path
from typing import TypeAlias

from paceline.api.loading import Loaded, load
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.text.tokenizer import same_vocabulary
from paceline.verifiers import VERIFIERS
from paceline.verifiers.base import Verifier

DrafterLike: TypeAlias = str | Path | Loaded | Drafter | None


def build_drafter(drafter: DrafterLike, *, target: Loaded) -> Drafter:
    """A drafter for ``target`` from a registered name, a draft directory, a loaded draft, or as it is; None is none.

    Raises ValueError for a name that is neither known nor a directory, and for a draft of another vocabulary.
    """
    if isinstance(drafter, Drafter):
        return drafter
    if drafter is None:
        return DRAFTERS.find("none")()
    if isinstance(drafter, Loaded):
        check_vocabulary(target, drafter)
        return DRAFTERS.find("model")(lm=drafter.lm)
    if isinstance(drafter, str) and drafter in DRAFTERS:
        if drafter == "model":
            raise ValueError("drafter 'model' needs a draft model: give its directory instead of the name")
        return DRAFTERS.find(drafter)()
    if isinstance(drafter, Path) or Path(drafter).is_dir():
        return build_drafter(load(drafter, dtype=target.dtype, device=target.lm.device), target=target)
    known = ", ".join(DRAFTERS)
    raise ValueError(f"unknown drafter {drafter!r}: no such directory; known names: {known}")


def build_verifier(name: str) -> Verifier:
    """The verifier called ``name``. Raises ValueError naming those that are known."""
    return VERIFIERS.find(name)()


def check_vocabulary(target: Loaded, draft: Loaded) -> None:
    """Raise ValueError unless the ids of both mean the same; models padded to other sizes pass with one tokenizer."""
    if target.tokenizer is not None and draft.tokenizer is not None:
        same = same_vocabulary(target.tokenizer, draft.tokenizer)
        sizes = (target.tokenizer.size, draft.tokenizer.size)
        if same:
            return
    else:
        sizes = (target.lm.vocab_size, draft.lm.vocab_size)
        if sizes[0] == sizes[1]:
            return
    raise ValueError(
        f"target {target.path} ({sizes[0]} tokens) and draft {draft.path} ({sizes[1]} tokens) have different "
        "vocabularies; take a draft with the target's own tokenizer.json, or the drafter 'ngram', which needs none"
    )
