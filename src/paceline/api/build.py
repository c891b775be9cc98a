"""Builds drafters and verifiers from a name, a model, a class, a file, or vLLM's ``speculative_config``."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from paceline.api import values
from paceline.api.automatic import AUTO, with_automatic
from paceline.api.cross_vocabulary import MODEL, SLEM, TLI, build_model_drafter, read_draft_model
from paceline.api.draft_heads import MTP, TargetLayers, build_head_drafter, find_head, read_weightless
from paceline.api.draft_length import NumDraftTokens, check_draft_length
from paceline.api.drafter_files import is_drafter_file, read_drafter_file
from paceline.api.drafter_like import (
    DrafterLike,
    OneDrafter,
    VerifierLike,
    check_one,
    names_a_model,
    unknown_drafter,
)
from paceline.api.loading import Loaded, load
from paceline.api.named import make_from_class, name_of, read_named
from paceline.api.speculative_config import (
    NgramSpeculation,
    Speculation,
    SuffixSpeculation,
    is_speculative_config,
    read_speculative_config,
)
from paceline.api.speculative_fields import HARMLESS, HEAD_METHODS
from paceline.api.stages import is_made_of_drafters, read_drafter_parts, refuse_bare
from paceline.core.plan import Plan
from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.candidates import CandidateDrafters
from paceline.drafters.host import HostDrafter, HostDrafting
from paceline.drafters.joined import JoinedCopies
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.from_transformers import is_transformers_model
from paceline.verifiers import VERIFIERS
from paceline.verifiers.base import Verifier

logger = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A drafter and its draft length, which is None unless a ``speculative_config`` gives it."""

    drafter: Drafter
    num_draft_tokens: int | None

    def length(self, given: NumDraftTokens | type[Plan]) -> NumDraftTokens:
        """The draft length where ``num_draft_tokens=given``; a plan may be given as its class.

        Raises ValueError for a draft length beside that of a ``speculative_config``, and for a class that needs
        arguments.
        """
        if isinstance(given, type):
            if not issubclass(given, Plan):
                check_draft_length(given)
            given = cast(Plan, make_from_class(given))
        if self.num_draft_tokens is None:
            return given
        if given not in ("auto", self.num_draft_tokens):
            raise ValueError(
                f"num_draft_tokens={given} and drafts of {self.num_draft_tokens} tokens by speculative_config: give "
                "one of the two lengths"
            )
        return self.num_draft_tokens


def build_drafting(drafter: DrafterLike, *, target: Loaded) -> Drafting:
    """The drafter for ``target`` that ``drafter`` describes:

    - None: plain decoding.
    - A registered name, such as "ngram", with options if wanted: "ngram:max_ngram=4,min_ngram=2".
    - A draft model: a directory, a Hub id ("owner/name"), a ``Loaded`` or a loaded transformers model, on the target's
      device. Those loaded here take the target's precision. Its tokenizer may be another one
      (``cross_vocabulary.choose_exchange``); "model:draft=DIR,vocabulary=slem" or "=tli" says how it drafts then.
    - The directory of a draft head trained for the target (``paceline.draft_heads.files``), or the directory or Hub id
      of one that another project saved (``paceline.draft_heads.formats``); the target must be native.
    - "early_exit:exit_layer=8", for a native target that was trained to predict from this layer.
    - "mtp", the layers of multi-token prediction in the directory of a native target; "mtp:DIR" in another one.
    - "layer_skip", the native target without the sub-layers that `paceline skip-search` found; "layer_skip:DIR",
      "layer_skip:attention=3-5;8,mlp=2" and "layer_skip:on_the_fly=true" are other ways to choose them.
    - vLLM's ``speculative_config``, a mapping or its JSON (``read_speculative_config``). Where it gives no length, a
      head drafts no more than it was trained for.
    - "FILE.py:NAME", a drafter in a file, with options if wanted: "mine.py:Repeat:period=4".
    - A ``Drafter``, used as it is, or a ``HostDrafter``, which is wrapped; or a class of either that needs no
      arguments.
    - Drafters made of these, as text or JSON (``paceline.api.stages``): "model:D1 < ngram", a draft model that prompt
      lookup drafts for; "model:D1 x2 + ngram", prompt lookup after two tokens of a draft model; "model:D1" alone.
    - A list of these, of which the plan chooses one for each step.
    - "auto", alone or in a list: copies of the prompt and of earlier outputs, and the heads in the target's directory.

    Raises ValueError, with the known names, for anything else, for a draft of another device, and for one that has no
    token in common with the target.
    """
    if is_made_of_drafters(drafter):
        parts = read_drafter_parts(drafter)
        made = parts.make(lambda part: _build(part, target))
        return Drafting(drafter=made, num_draft_tokens=parts.num_draft_tokens)
    if is_speculative_config(drafter):
        speculation = read_speculative_config(drafter)
        return Drafting(drafter=_speculate(speculation, target), num_draft_tokens=speculation.num_draft_tokens)
    if isinstance(drafter, str) and drafter == AUTO:
        return build_drafting([drafter], target=target)
    if isinstance(drafter, Sequence) and not isinstance(drafter, str):
        return Drafting(drafter=_build_candidates(with_automatic(drafter, target), target), num_draft_tokens=None)
    return Drafting(drafter=_build(drafter, target), num_draft_tokens=None)


def build_drafter(drafter: DrafterLike, *, target: Loaded) -> Drafter:
    """The drafter of ``build_drafting``, without its draft length."""
    return build_drafting(drafter, target=target).drafter


def build_shaped(
    draft: str | Path | Loaded,
    *,
    target: Loaded,
    shape: Topology | None,
    draws: frozenset[Draw] = frozenset(Draw),
    vocabulary: str = "auto",
) -> Drafter:
    """A drafter with a draft model or head that drafts ``shape`` (None: a chain) with one of ``draws``.

    ``vocabulary`` is how a draft model of another tokenizer drafts (``cross_vocabulary.choose_exchange``). Raises
    ValueError as ``build_drafting`` does, and for a shape that allows none of the draws.
    """
    head = None if isinstance(draft, Loaded) else find_head(draft)
    if head is not None:
        return build_head_drafter(head, target=target, shape=shape, draws=draws)
    loaded = draft if isinstance(draft, Loaded) else _load(draft, target)
    return build_model_drafter(target, loaded, draws=draws, shape=shape, wanted=vocabulary)


def build_verifier(verifier: VerifierLike) -> Verifier:
    """The verifier called "NAME" or "NAME:option=value,option=value"; a ``Verifier`` is used as it is, and made without
    arguments of its class.

    Options are the arguments of the verifier's class: "lossy_typical:epsilon=0.3,delta=0.09". Raises ValueError, with
    the known names, for anything else, and for a value that the class refuses.
    """
    if isinstance(verifier, str):
        return read_named(VERIFIERS, verifier).make()
    if isinstance(verifier, Verifier):  # as are classes of verifiers, which have its attributes
        return make_from_class(verifier) if isinstance(verifier, type) else verifier
    given = f"the class {verifier.__name__}" if isinstance(verifier, type) else f"of type {type(verifier).__name__}"
    raise ValueError(
        f"a verifier {given}; known names: {', '.join(VERIFIERS)}; or give a Verifier, made with its options"
    )


def check_options(
    drafter: DrafterLike,
    verifier: VerifierLike,
    num_draft_tokens: NumDraftTokens | type[Plan],
    batch_size: object,
) -> None:
    """Raise ValueError for what no engine takes, before a model is loaded for it."""
    if isinstance(drafter, Sequence) and not isinstance(drafter, str):
        for one in drafter:
            check_one(one)
    else:
        check_one(drafter)
    values.count(1, "at least 1")("batch_size", batch_size)
    if not isinstance(num_draft_tokens, type):  # a plan's class is made with the drafter
        check_draft_length(num_draft_tokens)
    build_verifier(verifier)


def _speculate(speculation: Speculation, target: Loaded) -> Drafter:
    if speculation.unused:
        _note_unused(speculation.unused)
    if isinstance(speculation, NgramSpeculation):
        return DRAFTERS.find("ngram")(max_ngram=speculation.max_ngram, min_ngram=speculation.min_ngram)
    if isinstance(speculation, SuffixSpeculation):
        made = DRAFTERS.find("suffix")(
            max_match=speculation.max_depth - 1,
            max_depth=speculation.max_depth,
            max_outputs=speculation.max_outputs,
            factor=speculation.factor,
            min_prob=speculation.min_prob,
        )
        return HostDrafting(made)
    path, shape, draws = speculation.model, speculation.tree, speculation.draws
    as_trained = speculation.num_draft_tokens is None
    if speculation.method == MTP:
        layers = TargetLayers(layers=path)
        return layers.drafter(target, revision=speculation.revision, shape=shape, draws=draws, as_trained=as_trained)
    assert path is not None
    head = find_head(path, speculation.revision)
    if head is not None:
        kinds = HEAD_METHODS.get(speculation.method)
        return build_head_drafter(head, target=target, shape=shape, draws=draws, as_trained=as_trained, kinds=kinds)
    if speculation.method in HEAD_METHODS:
        raise ValueError(
            f"speculative_config: method={speculation.method!r}: {path} is no draft head; give one, or method "
            "'draft_model' for a draft model"
        )
    draft = _load(path, target, revision=speculation.revision)
    vocabulary = TLI if speculation.heterogeneous else "auto"
    return build_shaped(draft, target=target, shape=shape, draws=draws, vocabulary=vocabulary)


@cache
def _note_unused(keys: tuple[str, ...]) -> None:
    """Say once for the same keys that they have no effect."""
    said = "; ".join(f"{key}: {HARMLESS[key]}" for key in keys)
    logger.warning("speculative_config: ignored, for nothing depends on it here: %s", said)


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
    copying = [one.drafter for one in built if isinstance(one, HostDrafting) and one.copies]
    others = [one for one in built if not isinstance(one, HostDrafting) or not one.copies]
    if not copying:
        return CandidateDrafters(others)
    copies = HostDrafting(copying[0] if len(copying) == 1 else JoinedCopies(copying))
    return CandidateDrafters([copies, *others]) if others else copies


def _build(drafter: OneDrafter | None, target: Loaded) -> Drafter:
    if isinstance(drafter, type) and issubclass(drafter, Drafter | HostDrafter):
        return _build(make_from_class(drafter), target)
    if isinstance(drafter, Drafter):
        return drafter
    if isinstance(drafter, HostDrafter):
        return HostDrafting(drafter)
    if drafter is None:
        return DRAFTERS.find("none")()
    if isinstance(drafter, Loaded):
        return build_model_drafter(target, drafter)
    if is_transformers_model(drafter):
        return _build(load(drafter, device=target.lm.device, enforce_eager=target.enforce_eager), target)
    if isinstance(drafter, str) and name_of(drafter) in DRAFTERS:
        return _by_name(drafter, target)
    if isinstance(drafter, str) and is_drafter_file(drafter):
        return _build(read_drafter_file(drafter).make(target), target)
    if isinstance(drafter, Path) or (isinstance(drafter, str) and names_a_model(drafter)):
        head = find_head(drafter)
        return _build(_load(drafter, target), target) if head is None else build_head_drafter(head, target=target)
    raise unknown_drafter(drafter)


def _load(path: str | Path, target: Loaded, *, revision: str | None = None) -> Loaded:
    """A draft model, loaded with the options of ``target``."""
    return load(
        path, dtype=target.dtype, device=target.lm.device, revision=revision, enforce_eager=target.enforce_eager
    )


def make_named(text: str, *, vocabulary: str | None = None) -> Drafter:
    """The registered drafter that ``text`` names, for a target whose tokens ``vocabulary`` names, if known.

    Raises ValueError for options that it does not have, or that its class refuses.
    """
    made = read_named(DRAFTERS, text).make(vocabulary=vocabulary)
    return HostDrafting(made) if isinstance(made, HostDrafter) else made


def _by_name(text: str, target: Loaded) -> Drafter:
    """The drafter that ``text`` names. Raises ValueError for one that needs a directory."""
    refuse_bare(text)
    if name_of(text) in (MODEL, SLEM):
        named = read_draft_model(text)
        return build_model_drafter(target, _load(named.draft, target), wanted=named.vocabulary)
    weightless = read_weightless(text)
    if weightless is not None:
        return weightless.drafter(target)
    vocabulary = None if target.tokenizer is None else target.tokenizer.digest
    return make_named(text, vocabulary=vocabulary)
