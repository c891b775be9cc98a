"""Reads the arguments of transformers' ``generate``: the effective configuration, and the prompts without padding.

B rows, T tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from paceline.api.generation_fields import HARMLESS, HONOURED, REFUSED, Refusal, Values, is_known, refusals
from paceline.api.values import TokenLists

_TOKENS = "prompts are token ids"
_POSITIONS = "set by attention_mask"
_CACHE = "the cache is Paceline's own"
_SOURCES = "encoder-decoders alone"

# Arguments of transformers' ``generate`` that are no fields of a GenerationConfig.
ARGUMENTS: dict[str, Refusal] = {
    "inputs_embeds": Refusal(reason=_TOKENS),
    "position_ids": Refusal(reason=_POSITIONS),
    "token_type_ids": Refusal(reason=_TOKENS),
    "past_key_values": Refusal(reason=_CACHE),
    "cache_position": Refusal(reason=_CACHE),
    "encoder_outputs": Refusal(reason=_SOURCES),
    "decoder_input_ids": Refusal(reason=_SOURCES),
    "decoder_attention_mask": Refusal(reason=_SOURCES),
    "custom_generate": Refusal(reason="the loop is Paceline's own"),
    "synced_gpus": Refusal(reason="decoding runs in one process", neutral=(False,)),
    "trust_remote_code": Refusal(reason="the model is already loaded", neutral=(False,)),
    "use_model_defaults": Refusal(reason="they are always used", neutral=(True,)),
}

# Arguments that transformers drops itself for decoder-only models: trainers give them.
DROPPED = ("labels",)

# Arguments that ``paceline.hf.generate`` takes by name, for suggestions in error messages.
NAMED = (
    "input_ids",
    "inputs",
    "attention_mask",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "assistant_model",
    "assistant_tokenizer",
    "generation_config",
    "logits_processor",
    "prefix_allowed_tokens_fn",
    "stopping_criteria",
    "streamer",
    "tokenizer",
    "verifier",
    "batch_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Prompts with and without padding."""

    padded: Tensor  # int64 [B, T] on the host
    rows: tuple[tuple[int, ...], ...]  # without padding


def merge(own: Values, given: Values, options: Mapping[str, object]) -> dict[str, Any]:
    """The effective configuration: ``options``, else ``given``, else the model's ``own``, field by field.

    None in ``given`` means not given; in ``options`` it is a value, as in transformers. Fields of ``own`` that
    transformers does not know are dropped, because nothing reads them. Raises one ValueError naming all options
    that are unknown or not supported.
    """
    named = {name for name, value in given.items() if value is not None}
    values: dict[str, Any] = {name: value for name, value in own.items() if is_known(name)}
    values.update({name: given[name] for name in named})
    values.update({name: value for name, value in options.items() if is_known(name)})
    if "top_k" in options and options["top_k"] is None:
        values["top_k"] = 0  # transformers fills its default in before it reads the options
    known = (*ARGUMENTS, *DROPPED)
    problems = [_unknown(name) for name in (*named, *options) if not is_known(name) and name not in known]
    problems += [
        f"{name} is not supported: leave it out"
        for name, refusal in ARGUMENTS.items()
        if options.get(name) is not None and not any(options[name] is value for value in refusal.neutral)
    ]
    for name in refusals(values):
        of_model = " of model.generation_config" if name not in options and name not in named else ""
        neutral = (*REFUSED[name].neutral, None)[0]
        problems.append(f"{name}={values[name]!r}{of_model} is not supported: give {name}={neutral!r}")
    if problems:
        raise ValueError("; ".join(problems))
    return values


def first_eos(values: Values) -> int | None:
    """The end-of-text token that transformers pads with where there is no padding token."""
    eos = values.get("eos_token_id")
    return next(iter(eos), None) if isinstance(eos, Sequence) else eos


def read_negatives(
    ids: object, attention_mask: object, *, prompts: Inputs, values: Values, vocab_size: int
) -> tuple[tuple[int, ...], ...] | None:
    """The negative prompt of every prompt; None where none is given.

    Raises ValueError for what is not supported. Padded ones are refused: in transformers, their positions depend on
    the padding.
    """
    if ids is None:
        if attention_mask is not None:
            raise ValueError("negative_prompt_attention_mask without negative_prompt_ids: give both, or neither")
        return None
    if values.get("guidance_scale") in (None, 1):
        raise ValueError("negative_prompt_ids without guidance_scale: give one other than 1, or leave them out")
    given = torch.as_tensor(ids)
    mask = torch.ones_like(given) if attention_mask is None else attention_mask
    found = read_inputs(given, mask, values=values, vocab_size=vocab_size)
    if any(len(row) < found.padded.shape[1] for row in found.rows):
        raise ValueError("negative_prompt_attention_mask has zeros: give negative prompts of one length")
    if len(found.rows) != len(prompts.rows):
        raise ValueError(f"{len(found.rows)} negative prompts for {len(prompts.rows)} prompts: give one for each")
    return found.rows


def read_inputs(input_ids: object, attention_mask: object, *, values: Values, vocab_size: int) -> Inputs:
    """Prompts [B, T], left-padded where ``attention_mask`` [B, T] is 0; without a mask, where transformers infers it.

    ``input_ids`` None is one row of the beginning-of-text token. Raises ValueError, naming the row, for other shapes
    and types, for padding that is not on the left, for rows of padding only, and for ids outside the vocabulary.
    """
    if input_ids is None:
        if values.get("bos_token_id") is None:
            raise ValueError("no input_ids, and the model has no bos_token_id to begin with: give input_ids")
        input_ids = [[values["bos_token_id"]]]
    padded = integers("input_ids", input_ids)
    if attention_mask is None:
        mask = _inferred(padded, values)
    else:
        mask = integers("attention_mask", attention_mask) != 0
        if mask.shape != padded.shape:
            raise ValueError(
                f"attention_mask of shape {list(mask.shape)} for input_ids of shape {list(padded.shape)}: "
                "give one of the same shape"
            )
    rows: list[tuple[int, ...]] = []
    for row, (tokens, row_mask) in enumerate(zip(padded, mask, strict=True)):
        _check_mask(row_mask, row)
        unpadded = tokens[row_mask]
        if int(unpadded.min()) < 0 or int(unpadded.max()) >= vocab_size:
            raise ValueError(
                f"row {row}: token ids {int(unpadded.min())}..{int(unpadded.max())} leave the model's vocabulary of "
                f"{vocab_size}; encode with its own tokenizer, and give attention_mask where ids are padding"
            )
        rows.append(tuple(unpadded.tolist()))
    return Inputs(padded=padded, rows=tuple(rows))


def ngrams_in_padding(padded: Tensor, num_tokens: int, length: int, vocab_size: int) -> TokenLists:
    """N-grams of ``length`` tokens of the prompt ``padded`` [T] that begin in padding, before its last ``num_tokens``.

    transformers counts them for ``no_repeat_ngram_size``. Those with ids outside the vocabulary are left out.
    """
    tokens: list[int] = padded.tolist()
    starts = range(min(len(tokens) - num_tokens, len(tokens) + 1 - length)) if length else ()
    ngrams = dict.fromkeys(tuple(tokens[start : start + length]) for start in starts)
    return tuple(ngram for ngram in ngrams if 0 <= min(ngram) <= max(ngram) < vocab_size)


def _unknown(name: str) -> str:
    known = (*HONOURED, *HARMLESS, *REFUSED, *ARGUMENTS, *NAMED)
    near = get_close_matches(name, known, n=3)
    return f"unknown option {name!r}" + (f", near {', '.join(near)}" if near else "") + ": leave it out"


def integers(name: str, given: object) -> Tensor:
    """``given`` as int64 [B, T] on the host; a flat list is one row."""
    if isinstance(given, Mapping):
        raise ValueError(f"{name} is a mapping of {', '.join(map(str, given))}: give generate(model, **inputs)")
    if not isinstance(given, Tensor):
        try:
            given = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{name} is not a 2-d table of integers ({error}): give rows of one length, padded on the left"
            ) from error
        given = given[None] if given.dim() == 1 else given
    if given.dim() != 2 or 0 in given.shape:
        raise ValueError(f"{name} of shape {list(given.shape)}: give [rows, tokens], at least one of each")
    if given.is_complex() or (given.is_floating_point() and name == "input_ids"):
        raise ValueError(f"{name} of {given.dtype}: give integers")
    return given.detach().to("cpu", torch.int64)


def _inferred(padded: Tensor, values: Values) -> Tensor:
    """As in transformers: zero at padding tokens, unless the padding token is an end-of-text token; else all ones."""
    pad, eos = values.get("pad_token_id"), values.get("eos_token_id")
    ends = eos if isinstance(eos, Sequence) else [eos]
    return torch.ones_like(padded, dtype=torch.bool) if pad is None or pad in ends else padded != pad


def _check_mask(mask: Tensor, row: int) -> None:
    """Raise ValueError unless ``mask`` [T] is zeros followed by at least one 1."""
    if not mask.any():
        raise ValueError(f"row {row} is padding only: give at least one token (a beginning-of-text token will do)")
    first, last = int(mask.int().argmax()), len(mask) - 1 - int(mask.flip(0).int().argmax())
    if last < len(mask) - 1:
        raise ValueError(f"row {row} is padded on the right: set tokenizer.padding_side = 'left' and encode again")
    if not mask[first:].all():
        hole = first + int(mask[first:].int().argmin())
        raise ValueError(f"row {row} has padding between tokens, at token {hole}: give an attention_mask without holes")
