"""Builds drafters and verifiers from a name, a model, or vLLM's ``speculative_config``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from paceline.api.draft_heads import build_head_drafter, is_head, read_weightless
from paceline.api.loading import Loaded, load, runnable
from paceline.api.named import name_of, read_named
from paceline.api.speculative_config import NgramSpeculation, Speculation, read_speculative_config
from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.candidates import CandidateDrafters
from paceline.drafters.host import HostDrafter, HostDrafting
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.from_transformers import TransformersModel, is_transformers_model
from paceline.text.tokenizer import same_vocabulary
from paceline.verifiers import VERIFIERS
from paceline.verifiers.base import Verifier

OneDrafter: TypeAlias = str | Path | Mapping[str, object] | Loaded | TransformersModel | Drafter | HostDrafter
DrafterLike: TypeAlias = OneDrafter | Sequence[OneDrafter] | None
VerifierLike: TypeAlias = str | Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A drafter and its draft length, which is None unless a ``speculative_config`` gives it."""

    drafter: Drafter
    num_draft_tokens: int | None


def build_drafting(drafter: DrafterLike, *, target: Loaded) -> Drafting:
    """The drafter for ``target`` that ``drafter`` describes:

    - None: plain decoding.
    - A registered name, such as "ngram", with options if wanted: "ngram:max_ngram=4,min_ngram=2".
    - A draft model: a directory, a Hub id ("owner/name"), a ``Loaded`` or a loaded transformers model, with the
      target's vocabulary and on its device. Those loaded here take the target's precision.
    - The directory of a draft head trained for the target (``paceline.draft_heads.files``); the target must be native.
    - "early_exit:exit_layer=8", for a native target that was trained to predict from this layer.
    - vLLM's ``speculative_config``, a mapping or its JSON (``read_speculative_config``).
    - A ``Drafter``, used as it is, or a ``HostDrafter``, which is wrapped.
    - A list of these, of which the plan chooses one for each step ("auto").

    Raises ValueError, with the known names, for anything else, and for a draft of another vocabulary or device.
    """
    if isinstance(drafter, Mapping) or (isinstance(drafter, str) and drafter.lstrip().startswith("{")):
        speculation = read_speculative_config(drafter)
        return Drafting(drafter=_speculate(speculation, target), num_draft_tokens=speculation.num_draft_tokens)
    if isinstance(drafter, Sequence) and not isinstance(drafter, str):
        return Drafting(drafter=_build_candidates(drafter, target), num_draft_tokens=None)
    return Drafting(drafter=_build(drafter, target), num_draft_tokens=None)


def build_drafter(drafter: DrafterLike, *, target: Loaded) -> Drafter:
    """The drafter of ``build_drafting``, without its draft length."""
    return build_drafting(drafter, target=target).drafter


def build_shaped(
    draft: str | Path | Loaded, *, target: Loaded, shape: Topology | None, draws: frozenset[Draw] = frozenset(Draw)
) -> Drafter:
    """A drafter with a draft model or head that drafts ``shape`` (None: a chain) with one of ``draws``.

    Raises ValueError as ``build_drafting`` does, and for a shape that allows none of the draws.
    """
    if isinstance(draft, str | Path) and is_head(draft):
        return build_head_drafter(draft, target=target, shape=shape, draws=draws)
    loaded = draft if isinstance(draft, Loaded) else _load(draft, target)
    _check_draft(target, loaded)
    return DRAFTERS.find("model")(lm=runnable(loaded), draws=draws, shape=shape)


def build_verifier(verifier: VerifierLike) -> Verifier:
    """The verifier called "NAME" or "NAME:option=value,option=value"; a ``Verifier`` is used as it is.

    Options are the arguments of the verifier's class: "lossy_typical:epsilon=0.3,delta=0.09". Raises ValueError, with
    the known names, for anything else, and for a value that the class refuses.
    """
    if isinstance(verifier, str):
        return read_named(VERIFIERS, verifier).make()
    if isinstance(verifier, Verifier) and not isinstance(verifier, type):
        return verifier
    given = f"the class {verifier.__name__}" if isinstance(verifier, type) else f"of type {type(verifier).__name__}"
    raise ValueError(
        f"a verifier {given}; known names: {', '.join(VERIFIERS)}; or give a Verifier, made with its options"
    )


def check_vocabulary(target: Loaded, draft: Loaded) -> None:
    """Raise ValueError unless both have the same vocabulary; sizes may differ by padding if the tokenizers agree."""
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
        f"target {target.name} ({sizes[0]} tokens) and draft {draft.name} ({sizes[1]} tokens) have different "
        "vocabularies; take a draft with the target's own tokenizer.json, or the drafter 'ngram', which needs none"
    )


def _speculate(speculation: Speculation, target: Loaded) -> Drafter:
    if isinstance(speculation, NgramSpeculation):
        return DRAFTERS.find("ngram")(max_ngram=speculation.max_ngram, min_ngram=speculation.min_ngram)
    path: str | Loaded = speculation.model
    if not is_head(path):
        path = _load(path, target, revision=speculation.revision)
    return build_shaped(path, target=target, shape=speculation.tree, draws=speculation.draws)


def _build_candidates(drafters: Sequence[OneDrafter], target: Loaded) -> Drafter:
    """Raises ValueError for a candidate that gives a draft length, and for one that drafts nothing."""
    if len(drafters) == 1:
        return build_drafting(drafters[0], target=target).drafter
    built: list[Drafter] = []
    for one in drafters:
        drafting = build_drafting(one, target=target)
        if drafting.num_draft_tokens is not None:
            raise ValueError(
                f"num_speculative_tokens={drafting.num_draft_tokens} of one of {len(drafters)} drafters: leave it out; "
                "how much each drafts is chosen in every step"
            )
        built.append(drafting.drafter)
    if any(isinstance(one, NoDrafter) for one in built):
        raise ValueError('the drafter "none" is one of several: leave it out; steps are plain where no draft pays')
    return CandidateDrafters(built)


def _build(drafter: OneDrafter | None, target: Loaded) -> Drafter:
    if isinstance(drafter, Drafter):
        return drafter
    if isinstance(drafter, HostDrafter):
        return HostDrafting(drafter)
    if drafter is None:
        return DRAFTERS.find("none")()
    if isinstance(drafter, Loaded):
        _check_draft(target, drafter)
        return DRAFTERS.find("model")(lm=runnable(drafter))
    if is_transformers_model(drafter):
        return _build(load(drafter, device=target.lm.device, enforce_eager=target.enforce_eager), target)
    if isinstance(drafter, str) and name_of(drafter) in DRAFTERS:
        return _by_name(drafter, target)
    if isinstance(drafter, str | Path) and is_head(drafter):
        return build_head_drafter(drafter, target=target)
    if isinstance(drafter, Path) or (isinstance(drafter, str) and _names_a_model(drafter)):
        return _build(_load(drafter, target), target)
    known = (
        f"known names: {', '.join(DRAFTERS)}; or give a draft model's directory, Hub id ('owner/name') or itself, or a "
        "head's directory"
    )
    if isinstance(drafter, str):
        raise ValueError(f"unknown drafter {drafter!r}: no such directory; {known}")
    raise ValueError(f"a drafter of type {type(drafter).__name__}; {known}")


def _load(path: str | Path, target: Loaded, *, revision: str | None = None) -> Loaded:
    """A draft model, loaded with the options of ``target``."""
    return load(
        path, dtype=target.dtype, device=target.lm.device, revision=revision, enforce_eager=target.enforce_eager
    )


def _names_a_model(text: str) -> bool:
    """Whether ``text`` is a directory, or can be a path or Hub id."""
    return "/" in text or (text != "" and Path(text).is_dir())


def _by_name(text: str, target: Loaded) -> Drafter:
    """The drafter that ``text`` names. Raises ValueError for one that needs a directory."""
    if name_of(text) == "model":
        raise ValueError("drafter 'model' needs a draft model: give its directory instead of the name")
    weightless = read_weightless(text)
    return read_named(DRAFTERS, text).make() if weightless is None else weightless.drafter(target)


def _check_draft(target: Loaded, draft: Loaded) -> None:
    """Raise ValueError unless ``draft`` has the device and the vocabulary of ``target``."""
    if draft.lm.device != target.lm.device:
        raise ValueError(
            f"target {target.name} is on {target.lm.device} and draft {draft.name} on {draft.lm.device}: load both on "
            "one device"
        )
    check_vocabulary(target, draft)
