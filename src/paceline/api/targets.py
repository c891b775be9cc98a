"""What a target is given as: a loaded model, a transformers model, a directory or a Hub id."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from paceline.api.loading import Loaded, load
from paceline.api.prompts import no_tokenizer
from paceline.models.from_transformers import TransformersModel, is_current, is_transformers_model, read_eos
from paceline.models.native.decoder import DecoderLM
from paceline.text.tokenizer import Tokenizer, has_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TargetLike: TypeAlias = Loaded | TransformersModel | str | Path

_LOADED: WeakKeyDictionary[TransformersModel, Loaded] = WeakKeyDictionary()


def check_target(target: object, tokenizer: object = None) -> None:
    """Raise ValueError for what cannot be a target or its tokenizer, without loading anything."""
    if not isinstance(target, Loaded | str | Path) and not is_transformers_model(target):
        raise ValueError(
            f"target={_named(target)}: give a directory, a Hub id, a loaded transformers model or what paceline.load "
            "returns (adapters merged into the model, for example by merge_and_unload())"
        )
    if tokenizer is None:
        return
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(f"tokenizer={_named(tokenizer)}: give a tokenizer of transformers, or None")


def check_tokenizer(directory: str | Path) -> None:
    """Raise ValueError for a model's directory without a tokenizer, where texts are to be encoded."""
    if Path(directory).is_dir() and not has_tokenizer(directory):
        raise no_tokenizer(directory)


def loaded(target: TargetLike, tokenizer: "PreTrainedTokenizerBase | None" = None, *, texts: bool = False) -> Loaded:
    """``target`` as a loaded model: a directory or Hub id is loaded, with the defaults of ``load``; a transformers
    model is used in place.

    ``tokenizer`` (None: that of the directory) encodes prompts and decodes outputs. Raises what ``load`` raises, and
    ValueError for anything else, and for ``texts`` to encode with a transformers model that comes without one.
    """
    check_target(target, tokenizer)
    found = target if isinstance(target, Loaded) else load_cached(target) if is_transformers_model(target) else None
    if found is None:
        assert isinstance(target, str | Path)
        if texts and tokenizer is None:
            check_tokenizer(target)
        found = load(target)
    if texts and tokenizer is None and found.tokenizer is None and is_transformers_model(target):
        raise ValueError(
            f"{found.name} was not loaded from a directory with a tokenizer: give it as tokenizer, or the prompts as "
            "token ids"
        )
    return found if tokenizer is None else found.with_tokenizer(Tokenizer(inner=tokenizer, name="tokenizer"))


def load_cached(model: TransformersModel) -> Loaded:
    """An LM over the weights of ``model``: the last call's native decoder if they have not moved, or an adapter.

    Weights that were changed in place are seen, because the decoder shares their memory.
    """
    known = _LOADED.get(model)
    if known is not None and isinstance(known.lm, DecoderLM) and is_current(known.lm, model):
        eos = read_eos(model)
        if eos != known.eos:
            known = _LOADED[model] = replace(known, eos=eos)
        return known
    found = load(model)
    if isinstance(found.lm, DecoderLM):  # an adapter references its model, which would then never be freed
        _LOADED[model] = found
    return found


def _named(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
