"""Builds drafters from the directories of draft heads, and those whose only weights are the target's."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

import torch

from paceline.api.layer_skip import NAME as LAYER_SKIP
from paceline.api.loading import Loaded
from paceline.api.named import read_named
from paceline.core.registry import Registry
from paceline.core.tree import Draw
from paceline.draft_heads import DRAFT_HEADS
from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.draft_heads.files import is_head, load_head
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.tree.shapes import Shape, Topology
from paceline.models import hub
from paceline.models.backend import fastest, pack_weights
from paceline.models.directory import ModelError, is_hub_id
from paceline.models.draft_layers import holds_draft_layers
from paceline.models.native.decoder import DecoderLM

__all__ = ["Weightless", "WeightlessExit", "build_head_drafter", "find_head", "is_head", "read_weightless"]


def find_head(draft: str | Path, revision: str | None = None, *, pickles: bool = False) -> Path | None:
    """The directory of the draft head that ``draft`` names, a directory or the Hub id of one; None for anything else.

    What a Hub id names is fetched, at ``revision``, pickled weights only with ``pickles``. Raises ModelError for an id
    that cannot be, and for the revision of a directory.
    """
    if not is_hub_id(draft):
        if revision is not None and is_head(draft):
            raise ModelError(f"revision={revision!r}: {draft} is a local directory; leave it out")
        return Path(draft) if is_head(draft) else None
    found = hub.fetch(str(draft), revision, pickles=pickles)
    return found if is_head(found) else None


def find_layers(model: str | Path, revision: str | None = None) -> Path | None:
    """The directory of the model that ``model`` names, a directory or Hub id, if it has layers of multi-token
    prediction; else None.
    """
    folder = hub.fetch(str(model), revision) if is_hub_id(model) else Path(model)
    return folder if holds_draft_layers(folder) else None


def build_head_drafter(
    path: str | Path,
    *,
    target: Loaded,
    shape: Shape | None = None,
    draws: frozenset[Draw] | None = None,
    as_trained: bool = False,
    kinds: Collection[str] | None = None,
) -> Drafter:
    """A drafter with the draft head of the directory ``path``, in the precision and on the device of ``target``.

    It drafts ``shape`` (None: a chain; ``as_trained`` one of no more tokens than it was trained for) with one of
    ``draws`` (None: all that the shape allows). Raises ValueError for a target that transformers runs, for missing or
    broken files, for a head of another target or of a kind that is not one of ``kinds``, and for a shape that allows
    none of the draws.
    """
    head = load_head(path, _native(target, f"{path} is a head, which"), target_name=target.name)
    if kinds is not None and head.kind not in kinds:
        raise ValueError(
            f"{path} is a {head.kind} head, and the method asks for {' or '.join(kinds)}: give another method, such as "
            "'draft_model', which takes heads of any kind"
        )
    depth = head.config.trained_depth
    if as_trained and shape is None and depth is not None:
        shape = Topology.chain(depth)
    return _drafter(head, target, shape=shape, draws=draws)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightlessExit:
    """An early exit with the target's own norm and LM head, for a target trained for it (2404.16710)."""

    exit_layer: int

    def drafter(self, target: Loaded) -> Drafter:
        """The drafter. Raises ValueError for a layer that ``target`` lacks, and for one that transformers runs."""
        lm = _native(target, f"drafter 'early_exit:exit_layer={self.exit_layer}'")
        if self.exit_layer < 1:
            raise ValueError(f"exit_layer={self.exit_layer}: give at least 1")
        config = EarlyExitConfig(exit_layer=self.exit_layer, num_blocks=0, own_norm=False)
        return _drafter(EarlyExitHead.make(config, lm, generator=torch.Generator()), target)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLayers:
    """The layers of multi-token prediction in the directory or Hub id ``layers`` (None: the target's own)."""

    layers: str | None = None

    def drafter(
        self,
        target: Loaded,
        *,
        revision: str | None = None,
        shape: Shape | None = None,
        draws: frozenset[Draw] | None = None,
        as_trained: bool = False,
    ) -> Drafter:
        """The drafter, as ``build_head_drafter`` makes it. Raises ValueError for a model without such layers."""
        given = self.layers or target.name
        found = find_head(given, revision) or find_layers(given, revision)
        if found is None:
            raise ValueError(
                f"drafter 'mtp' needs a head that was trained for the target, and {given} has no layers of multi-token "
                "prediction: give the head's directory instead of the name"
            )
        return build_head_drafter(found, target=target, shape=shape, draws=draws, as_trained=as_trained, kinds=(MTP,))


class Weightless(Protocol):
    """Options of a drafter whose only weights are the target's."""

    def drafter(self, target: Loaded) -> Drafter:
        """The drafter for ``target``. Raises ValueError for a target that it cannot serve."""
        ...


MTP = "mtp"
DIRECTORY_OPTIONS = {LAYER_SKIP: "skip", MTP: "layers"}
WITHOUT_FILES = Registry(
    "drafter",
    {
        "early_exit": "paceline.api.draft_heads:WeightlessExit",
        LAYER_SKIP: "paceline.api.layer_skip:LayerSkip",
        MTP: "paceline.api.draft_heads:TargetLayers",
    },
)


def read_weightless(text: str) -> Weightless | None:
    """The drafter of "early_exit:exit_layer=8", "layer_skip:DIR" or "mtp"; None if ``text`` names one of another kind.

    Raises ValueError for a name that needs the head's directory, and for unknown options.
    """
    name, _, rest = text.partition(":")
    if name in DIRECTORY_OPTIONS:
        alone = rest != "" and "=" not in rest  # "layer_skip:DIR" is "layer_skip:skip=DIR"
        return read_named(WITHOUT_FILES, f"{name}:{DIRECTORY_OPTIONS[name]}={rest}" if alone else text).make()
    if name not in DRAFT_HEADS:
        return None
    if name in WITHOUT_FILES and name != text:
        return read_named(WITHOUT_FILES, text).make()
    raise ValueError(
        f"drafter {name!r} needs a head that was trained for the target: give the head's directory instead of the name"
        + (f", or {name}:exit_layer=LAYER for a target that was trained for it" if name in WITHOUT_FILES else "")
    )


def _native(target: Loaded, who: str) -> DecoderLM:
    """The target's native decoder. Raises ValueError if transformers runs it."""
    if not isinstance(target.lm, DecoderLM):
        raise ValueError(
            f"{who} drafts from hidden states of native models, and {target.name} is run by transformers: load it with "
            "backend='native', or give another drafter"
        )
    return target.lm


def _drafter(
    head: DraftHead, target: Loaded, *, shape: Shape | None = None, draws: frozenset[Draw] | None = None
) -> Drafter:
    if not target.enforce_eager:
        assert isinstance(target.lm, DecoderLM)
        pack_weights(head.decoder, beside=target.lm)
        head.use_kernels()
    lm = head.drafting_decoder if target.enforce_eager else fastest(head.drafting_decoder)
    return DRAFTERS.find(head.kind)(head=head, lm=lm, shape=shape, draws=draws)
