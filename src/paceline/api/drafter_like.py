"""What a drafter is given as, and what is refused of it before any model is loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from paceline.api.automatic import AUTO
from paceline.api.cross_vocabulary import MODEL, SLEM, read_draft_model
from paceline.api.draft_heads import is_head, read_weightless
from paceline.api.drafter_files import is_drafter_file, read_drafter_file
from paceline.api.loading import Loaded
from paceline.api.named import name_of, read_named
from paceline.api.speculative_config import is_speculative_config, read_speculative_config
from paceline.api.stages import is_made_of_drafters, read_drafter_parts, refuse_bare
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.host import HostDrafter
from paceline.models.directory import check_path
from paceline.models.from_transformers import TransformersModel, is_transformers_model
from paceline.verifiers.base import Verifier

OneDrafter: TypeAlias = (
    str
    | Path
    | Mapping[str, object]
    | Loaded
    | TransformersModel
    | Drafter
    | HostDrafter
    | type[Drafter]
    | type[HostDrafter]
)
DrafterLike: TypeAlias = OneDrafter | Sequence[OneDrafter] | None
VerifierLike: TypeAlias = str | Verifier | type[Verifier]


def check_drafter(text: str) -> bool:
    """Whether ``text`` is a drafter by its name, in a registry or in a file. No model is needed.

    Raises ValueError for options that it does not have, or that a built-in class refuses, and for a name that the file
    does not have.
    """
    if text == AUTO:
        return True
    if is_made_of_drafters(text):
        read_drafter_parts(text)
    elif name_of(text) in (MODEL, SLEM):
        refuse_bare(text)
        read_draft_model(text)
    elif name_of(text) in DRAFTERS:
        refuse_bare(text)
        if read_weightless(text) is None:
            named = read_named(DRAFTERS, text)
            if name_of(text) in DRAFTERS.builtin:  # of other packages it is not known what making one takes
                named.make()
    elif is_drafter_file(text):
        read_drafter_file(text)
    else:
        return False
    return True


def check_one(drafter: OneDrafter | None) -> None:
    """Raise ValueError for what is no drafter of any target, and for a directory that holds neither model nor head."""
    if drafter == AUTO:
        return
    if is_made_of_drafters(drafter):
        read_drafter_parts(drafter)
    elif is_speculative_config(drafter):
        read_speculative_config(drafter)
    elif isinstance(drafter, str) and (name_of(drafter) in DRAFTERS or is_drafter_file(drafter)):
        check_drafter(drafter)
    elif isinstance(drafter, Path) or (isinstance(drafter, str) and names_a_model(drafter)):
        if not is_head(drafter):
            check_path(drafter)
    elif not (
        drafter is None
        or isinstance(drafter, Loaded | Drafter | HostDrafter)
        or is_transformers_model(drafter)
        or (isinstance(drafter, type) and issubclass(drafter, Drafter | HostDrafter))
    ):
        raise unknown_drafter(drafter)


def unknown_drafter(drafter: object) -> ValueError:
    """What says that ``drafter`` is none, and what is."""
    known = (
        f"known names: {', '.join(DRAFTERS)}; or give a draft model's directory, Hub id ('owner/name') or itself, a "
        "head's directory, or FILE.py:NAME for a drafter of your own"
    )
    if isinstance(drafter, str):
        return ValueError(f"unknown drafter {drafter!r}: no such directory; {known}")
    given = f"the class {drafter.__name__}" if isinstance(drafter, type) else f"of type {type(drafter).__name__}"
    return ValueError(f"a drafter {given}; {known}")


def names_a_model(text: str) -> bool:
    """Whether ``text`` is a directory, or can be a path or Hub id."""
    return "/" in text or (text != "" and Path(text).is_dir())
