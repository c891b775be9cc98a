"""Profiles of a loaded target and a drafter: under which conditions they hold, and how an engine begins with one."""

import json
import logging
import os
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from paceline.api.loading import Loaded
from paceline.drafters.base import Drafter
from paceline.drafters.growing import GrowingDrafter
from paceline.drafters.host import HostDrafting
from paceline.drafters.sublayer_search import OnTheFly
from paceline.engine.knowledge import MAX_DRAFT_TOKENS, Knowledge, weights_of
from paceline.engine.profile import Conditions, ProfileError, profile_folder, profile_path, read_profile
from paceline.hardware.processor import processor_name
from paceline.kernels.cpu.instruction_set import describe_set
from paceline.models.native.decoder import DecoderLM
from paceline.models.sublayers import SkippedSublayers
from paceline.models.work import forward_work

logger = logging.getLogger("paceline")

ProfileLike: TypeAlias = str | Path | Literal["auto"] | None


def conditions_of(target: Loaded, drafter: Drafter) -> Conditions | None:
    """What a profile of the two holds for; None where nothing tells the models from others."""
    if drafter.parts:  # of which each would have to be told from others
        return None
    own = drafter.own_weights if isinstance(drafter, GrowingDrafter) else None
    models = [target.lm, *([] if own is None else [own])]
    weights = [weights_of(lm) for lm in models]
    if not all(weights):
        return None
    device, lm = target.lm.device, target.lm
    precision = forward_work(lm).products if isinstance(lm, DecoderLM) else str(target.dtype).removeprefix("torch.")
    if device.type == "cuda":
        machine, threads = torch.cuda.get_device_name(device), "any"
    else:
        machine = f"{processor_name()}, {os.cpu_count()} cores, {describe_set() or 'no kernel'}"
        threads = str(torch.get_num_threads())
    return {
        "machine": machine,
        "number of threads": threads,
        "model": weights[0],
        "precision": precision,
        "implementation": "eager" if target.enforce_eager else "fastest",
        "drafter": " ".join((_name(drafter), *weights[1:])),
    }


def check_profile(profile: ProfileLike, *, controlled: bool) -> None:
    """Raise ValueError for a file that is missing, and for one where no controller would begin from it."""
    if profile in ("auto", None):
        return
    if not Path(profile or "").is_file():
        raise ValueError(f"profile {profile}: no such file; let paceline advise write it, or give 'auto' or None")
    if not controlled:
        raise ValueError(
            f"profile {profile}: nothing begins from it without a drafter or with several, with a number of draft "
            "tokens, and with a verifier whose tokens depend on the draft; leave it out"
        )


def begin_with(profile: ProfileLike, *, target: Loaded) -> Callable[[Drafter, Knowledge], None]:
    """What lets a process begin with ``profile``: a file; "auto", the one that is there by default; or None, nothing.

    One that is of no use is left with a warning.
    """

    def begin(drafter: Drafter, knowledge: Knowledge) -> None:
        if profile is None or (profile == "auto" and not profile_folder().is_dir()):
            return
        conditions = conditions_of(target, drafter)
        if conditions is None:
            return
        path = profile_path(conditions) if profile == "auto" else Path(profile)
        if profile == "auto" and not path.is_file():
            return
        try:
            read_profile(path, conditions, knowledge)
        except ProfileError as error:
            logger.warning(
                "profile %s: it is ignored; measure anew with `paceline advise %s`, or delete it", error, target.name
            )

    return begin


def _name(drafter: Drafter) -> str:
    """Its kind, its options and the sizes of its drafts."""
    inner = drafter.drafter if isinstance(drafter, HostDrafting) else drafter
    kind = type(inner)
    options = {
        name: str(value) if isinstance(value, SkippedSublayers | OnTheFly) else value
        for name in signature(kind).parameters
        if isinstance(value := getattr(inner, name, None), bool | int | float | str | SkippedSublayers | OnTheFly)
    }
    sizes = [drafter.max_nodes(depth) - 1 for depth in range(1, MAX_DRAFT_TOKENS + 1)]
    shape = "" if sizes == list(range(1, MAX_DRAFT_TOKENS + 1)) else f" {sizes}"
    return f"{kind.__qualname__}{json.dumps(options, sort_keys=True) if options else ''}{shape}"
