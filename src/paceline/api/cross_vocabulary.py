"""How a draft model talks to a target: in the same tokens, in those that both have (TLI), or as text (SLEM)."""

from dataclasses import dataclass, replace
from typing import cast, final

from paceline.api.loading import Loaded, runnable
from paceline.api.named import name_of, read_options
from paceline.core.tree import Draw
from paceline.draft_heads.vocab_map import MappedVocab, reduce_vocab
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.host import HostDrafting
from paceline.drafters.tree.shapes import Shape
from paceline.models.shared_encoder import reading_from
from paceline.text.intersection import Intersection, intersect
from paceline.text.retokenizer import Retokenizer
from paceline.text.tokenizer import same_vocabulary

MODEL = "model"  # the drafter's name
SAME, TLI, SLEM = "same", "tli", "slem"
WAYS = ("auto", TLI, SLEM)  # that can be asked for
ENOUGH = 0.75  # of an ordinary text's tokens in common, from which on drafting these alone accepts more than SLEM


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The ``way`` in which a draft model drafts, and what the vocabularies have in common where they differ."""

    way: str
    intersection: Intersection | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A draft model by its directory or Hub id, and how it drafts if its vocabulary is not the target's."""

    draft: str
    vocabulary: str = "auto"


def read_draft_model(text: str) -> DraftModel:
    """The draft model of "model:draft=DIR,vocabulary=slem". Raises ValueError for other options, and for none."""
    if text in (MODEL, SLEM):
        raise ValueError(
            f"drafter {text!r} needs a draft model: give its directory instead of the name"
            + (", or model:draft=DIR,vocabulary=slem" if text == SLEM else "")
        )
    found = DraftModel(**cast(dict[str, str], read_options(DraftModel, text, name=name_of(text), what="drafter")))
    if name_of(text) == SLEM:
        raise ValueError(f"drafter {text!r}: write model:draft={found.draft},vocabulary=slem")
    _check_way(found.vocabulary)
    return found


def choose_exchange(target: Loaded, draft: Loaded, *, wanted: str = "auto") -> Exchange:
    """How ``draft`` drafts for ``target``: by ``wanted``, else in the same tokens where the vocabularies are the same
    (sizes may differ by padding), else by TLI where at least ``ENOUGH`` of an ordinary text's tokens are in common,
    else by SLEM.

    Raises ValueError for vocabularies without a common token, and for different ones where a tokenizer is missing.
    """
    _check_way(wanted)
    if target.tokenizer is None or draft.tokenizer is None:
        sizes = (target.lm.vocab_size, draft.lm.vocab_size)
        if sizes[0] == sizes[1] and wanted != SLEM:
            return Exchange(way=SAME)
        raise _different(target, draft, sizes, "and their texts cannot be compared without a tokenizer of each")
    if wanted != SLEM and same_vocabulary(target.tokenizer, draft.tokenizer):
        return Exchange(way=SAME)
    found = intersect(
        target.tokenizer, draft.tokenizer, target_size=target.lm.vocab_size, draft_size=draft.lm.vocab_size
    )
    if not found.num_common:
        raise _different(target, draft, (target.tokenizer.size, draft.tokenizer.size), "without a token in common")
    if wanted == "auto":
        wanted = TLI if found.common_in_text >= ENOUGH else SLEM
    return Exchange(way=wanted, intersection=found)


def build_model_drafter(
    target: Loaded,
    draft: Loaded,
    *,
    wanted: str = "auto",
    shape: Shape | None = None,
    draws: frozenset[Draw] | None = None,
) -> Drafter:
    """A drafter with the model ``draft``, by ``choose_exchange``; see ``ModelDrafter`` for shape and draws.

    A draft whose encoder equals the target's reads the target's states. One with a draft vocabulary drafts that alone
    where the vocabularies are the same.

    Raises ValueError for models on different devices, for what ``choose_exchange`` refuses, and for a shape or draws
    other than chains of fixed tokens where drafts are exchanged as text.
    """
    if draft.lm.device != target.lm.device:
        raise ValueError(
            f"target {target.name} is on {target.lm.device} and draft {draft.name} on {draft.lm.device}: load both on "
            "one device"
        )
    exchange = choose_exchange(target, draft, wanted=wanted)
    draft = replace(draft, lm=reading_from(draft.lm, target.lm))
    found = exchange.intersection
    if found is None:
        if draft.draft_ids is None:
            return DRAFTERS.find("model")(lm=runnable(draft), shape=shape, draws=draws)
        lm, some = reduce_vocab(draft.lm, draft.draft_ids, target_size=target.lm.vocab_size)
        return DRAFTERS.find("model")(lm=runnable(replace(draft, lm=lm)), shape=shape, draws=draws, vocab=some)
    if exchange.way == TLI:
        vocab = MappedVocab(
            target_ids=found.target_ids,
            target_size=target.lm.vocab_size,
            unknown=found.unknown,
            spellings=found.spellings,
            first=found.first,
            device=target.lm.device,
        )
        return DRAFTERS.find("model")(lm=runnable(draft), shape=shape, draws=draws, vocab=vocab)
    if shape is not None or (draws is not None and Draw.FIXED not in draws):
        raise ValueError(
            f"target {target.name} and draft {draft.name} exchange drafts as text (vocabulary=slem), which are chains "
            "of the most probable tokens: leave out the tree and the way of drawing, or give vocabulary=tli"
        )
    assert target.tokenizer is not None and draft.tokenizer is not None
    text = Retokenizer(
        target=target.tokenizer,
        draft=draft.tokenizer,
        target_size=target.lm.vocab_size,
        draft_size=draft.lm.vocab_size,
    )
    return HostDrafting(DRAFTERS.find("slem")(lm=runnable(draft), text=text))


def _check_way(wanted: str) -> None:
    if wanted not in WAYS:
        raise ValueError(f"vocabulary={wanted!r}: give {', '.join(WAYS)}")


def _different(target: Loaded, draft: Loaded, sizes: tuple[int, int], why: str) -> ValueError:
    return ValueError(
        f"target {target.name} ({sizes[0]} tokens) and draft {draft.name} ({sizes[1]} tokens) have different "
        f"vocabularies, {why}; take a draft with the target's own tokenizer.json, or the drafter 'ngram', which needs "
        "none"
    )
