"""``patch``: lets a model's own ``generate`` run here, for code that calls it, such as pipelines and trainers."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, final

from torch import Tensor
from transformers import GenerationMixin, PreTrainedTokenizerBase

from paceline.api import values
from paceline.api.build import build_drafter, build_verifier
from paceline.api.drafter_like import VerifierLike
from paceline.api.loading import Loaded, load
from paceline.api.targets import load_cached
from paceline.draft_heads.files import is_head
from paceline.drafters.base import Drafter
from paceline.hf.drop_in import SpeculativeOutput, check_tokenizers, checked, generate, with_tokenizer
from paceline.models.from_transformers import TransformersModel, is_transformers_model

NAME = "generate"
# The parameters of a model's ``generate`` in their order, as far as they can be given by position.
PARAMETERS = tuple(name for name in signature(vars(GenerationMixin)[NAME]).parameters if name not in ("self", "kwargs"))
DRAFTING = ("assistant_model", "prompt_lookup_num_tokens")  # a call with one of these chooses its drafter itself

Model = TypeVar("Model", bound=TransformersModel)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patch:
    """The ``generate`` of a patched ``model``. Copies and files of the model get the model's own ``generate``."""

    model: TransformersModel
    before: object  # the ``generate`` that the model itself had, beside that of its class; None: no other
    drafting: Mapping[str, Any]
    options: Mapping[str, Any]

    def __call__(self, *args: object, **kwargs: Any) -> Tensor | SpeculativeOutput:
        """As transformers' ``model.generate``, with the arguments of ``paceline.hf.generate``."""
        if len(args) > len(PARAMETERS):
            raise TypeError(f"generate() takes {len(PARAMETERS)} positional arguments, and {len(args)} are given")
        given = dict(zip(PARAMETERS, args, strict=False))
        twice = sorted(given.keys() & kwargs.keys())
        if twice:
            raise TypeError(f"generate() got {', '.join(twice)} by position and by name: give one of them")
        call: dict[str, Any] = {
            **self.options,
            **{name: one for name, one in given.items() if one is not None},
            **kwargs,
        }
        if all(call.get(name) is None for name in DRAFTING):
            call = {**self.drafting, **call, **{name: self.drafting.get(name) for name in DRAFTING}}
        return generate(self.model, **call)

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (self.model, NAME)  # while a copy is made, it has no attributes but those of its class


def patch(
    model: Model,
    *,
    assistant_model: TransformersModel | Loaded | str | Path | Drafter | None = None,
    prompt_lookup_num_tokens: int | None = None,
    num_assistant_tokens: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    verifier: VerifierLike = "coupled",
    batch_size: int | None = None,
) -> Model:
    """Let ``model.generate`` be ``paceline.hf.generate`` and return ``model``; ``unpatch`` undoes it.

    The options, which are those of ``paceline.hf.generate``, hold for every call that does not give them itself; a
    call that names a drafter of its own uses none of this one, nor its tokenizer. A directory is loaded once. Patching
    again replaces the options. What ``paceline.hf.generate`` cannot honour raises ValueError in the call. Copies of the
    model, and files that it is saved to, are not patched.

    Raises ValueError for a model that cannot run here, and for options that are wrong or do not fit together.
    """
    target = load_cached(checked(model))
    build_verifier(verifier)
    if batch_size is not None:
        values.count(1, "at least 1, or None")("batch_size", batch_size)
    for name, count in (
        ("prompt_lookup_num_tokens", prompt_lookup_num_tokens),
        ("num_assistant_tokens", num_assistant_tokens),
    ):
        values.count(1, "at least 1, or None", optional=True)(name, count)
    if assistant_model is not None and prompt_lookup_num_tokens is not None:
        raise ValueError(
            f"assistant_model and prompt_lookup_num_tokens={prompt_lookup_num_tokens} would both draft: give one of "
            "them"
        )
    check_tokenizers(tokenizer, assistant_tokenizer, assistant_model)
    if isinstance(assistant_model, str | Path) and Path(assistant_model).is_dir() and not is_head(assistant_model):
        assistant_model = load(assistant_model, dtype=target.dtype, device=target.lm.device)
    assistant = load_cached(assistant_model) if is_transformers_model(assistant_model) else assistant_model
    if assistant_tokenizer is not None and isinstance(assistant, Loaded):
        target, assistant = with_tokenizer(target, tokenizer), with_tokenizer(assistant, assistant_tokenizer)
    build_drafter(assistant, target=target)
    drafting = {
        "assistant_model": assistant_model,
        "prompt_lookup_num_tokens": prompt_lookup_num_tokens,
        "num_assistant_tokens": num_assistant_tokens,
        "assistant_tokenizer": assistant_tokenizer,
    }
    before = vars(model).get(NAME)
    setattr(
        model,
        NAME,
        Patch(
            model=model,
            before=before.before if isinstance(before, Patch) else before,
            drafting={name: value for name, value in drafting.items() if value is not None},
            options={"verifier": verifier, "batch_size": batch_size, "tokenizer": tokenizer},
        ),
    )
    return model


def unpatch(model: Model) -> Model:
    """Give ``model`` its own ``generate`` back and return it. Raises ValueError for a model that is not patched."""
    found = vars(model).get(NAME)
    if not isinstance(found, Patch):
        raise ValueError(f"{type(model).__name__} is not patched: call paceline.hf.patch(model) first")
    delattr(model, NAME)
    if found.before is not None:
        setattr(model, NAME, found.before)
    return model
