"""Heads of a target, from their directories to drafters. Decodes nothing.

A head (``paceline.heads``) drafts from the target's own hidden states, and shares weights with it.
"""

from pathlib import Path

from paceline.api.loading import Loaded
from paceline.api.named import name_of
from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.grow.shapes import Shape
from paceline.engine.static import fastest, lay_out
from paceline.heads import HEADS
from paceline.heads.files import is_head, load_head
from paceline.models.decoder import DecoderLM

__all__ = ["build_head_drafter", "check_no_head", "is_head"]


def build_head_drafter(
    path: str | Path, *, target: Loaded, shape: Shape | None = None, draws: frozenset[Draw] | None = None
) -> Drafter:
    """What drafts with the head of the directory ``path``, loaded in the precision and on the device of ``target``.

    ``shape`` (None: a chain) is what it drafts, in one of the ways ``draws`` (None: all that the shape allows). Raises
    ValueError for a target that transformers runs, for files that are missing or broken, for a head of another target,
    and where the shape allows none of the draws.
    """
    if not isinstance(target.lm, DecoderLM):
        raise ValueError(
            f"{path} is a head, which drafts from hidden states of native models, and {target.name} is run by "
            "transformers: load it with backend='native', or give another drafter"
        )
    head = load_head(path, target.lm, target_name=target.name)
    lm = head.decoder
    if not target.enforce_eager:
        lay_out(lm, beside=target.lm)
        lm = fastest(lm)
    return DRAFTERS.find(head.kind)(head=head, lm=lm, shape=shape, draws=draws)


def check_no_head(text: str) -> None:
    """Raise ValueError for the bare name of a drafter that a head is needed for."""
    if name_of(text) in HEADS:
        raise ValueError(
            f"drafter {name_of(text)!r} needs a head that was trained for the target: give the head's directory "
            "instead of the name"
        )
