"""Reads what transformers' ``generate`` takes for an encoder-decoder: the encoder's input, and the decoder's prompts.

B prompts, T tokens of a padded source, X states, H hidden size, t tokens of the decoder's prompts.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.api.generation_fields import Values
from paceline.api.loading import Loaded
from paceline.core.context import Context
from paceline.hf.inputs import Inputs, integers
from paceline.models.native.encoder_decoder import STATES, TOKENS

OF_SOURCES = ("decoder_input_ids", "decoder_attention_mask", "encoder_outputs")  # arguments of encoder-decoders alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """``contexts`` of B prompts, and the decoder's own."""

    contexts: tuple[Context, ...]
    prompts: Inputs


def take(options: MutableMapping[str, object]) -> dict[str, object]:
    """The arguments of encoder-decoders, taken out of ``options``; those that are None are left out."""
    taken = {name: options.pop(name, None) for name in OF_SOURCES}
    return {name: value for name, value in taken.items() if value is not None}


def refuse_with_sources(**given: bool) -> None:
    """Raise ValueError for the first of ``given``, which encoder-decoders are not served with."""
    for name in (name for name, is_given in given.items() if is_given):
        other = "call paceline.hf.generate(model, ...)" if name == "custom_generate" else "leave it out"
        raise ValueError(f"{name} with an encoder-decoder is not supported: {other}")


def read_sources(
    input_ids: object, attention_mask: object, given: Mapping[str, object], *, values: Values, target: Loaded
) -> Sources:
    """What the encoder of ``target`` reads of ``input_ids`` [B, T], padded on the right where ``attention_mask`` is 0,
    or its states, and the decoder's prompts. Without a mask there is no padding.

    As in transformers, the decoder begins with ``decoder_start_token_id``, also where ``decoder_input_ids`` [B, t] do
    not. Raises ValueError, naming the row, for shapes, padding and ids that do not fit.
    """
    if (states := given.get("encoder_outputs")) is not None:
        if input_ids is not None:
            raise ValueError("input_ids and encoder_outputs are the same source: give one of them")
        contexts = _states(states, attention_mask)
    else:
        contexts = _tokens(input_ids, attention_mask, target=target)
    return Sources(contexts=contexts, prompts=_decoder_prompts(given, len(contexts), values=values, target=target))


def _tokens(input_ids: object, attention_mask: object, *, target: Loaded) -> tuple[Context, ...]:
    if TOKENS not in target.lm.context_inputs:
        raise ValueError(f"{target.name} reads no tokens: use paceline.transcribe, or paceline.generate")
    if input_ids is None:
        raise ValueError("no input_ids for the encoder: give input_ids or encoder_outputs")
    padded = integers("input_ids", input_ids)
    mask = torch.ones_like(padded) if attention_mask is None else integers("attention_mask", attention_mask)
    if mask.shape != padded.shape:
        raise ValueError(
            f"attention_mask of shape {list(mask.shape)} for input_ids of shape {list(padded.shape)}: "
            "give one of the same shape"
        )
    rows = [tokens[:size] for tokens, size in zip(padded, _lengths(mask != 0), strict=True)]
    vocab = target.lm.vocab_size
    for row, tokens in enumerate(rows):
        if int(tokens.min()) < 0 or int(tokens.max()) >= vocab:
            raise ValueError(
                f"row {row}: token ids {int(tokens.min())}..{int(tokens.max())} leave the model's vocabulary of "
                f"{vocab}; encode with its own tokenizer, and give attention_mask where ids are padding"
            )
    return tuple(Context({TOKENS: tokens}) for tokens in rows)


def _states(states: object, attention_mask: object) -> tuple[Context, ...]:
    """Of what an encoder of transformers gave: its output, or the states [B, X, H] alone or first in a sequence."""
    found = getattr(states, "last_hidden_state", states)
    found = found[0] if isinstance(found, Sequence) else found
    if not isinstance(found, Tensor) or found.dim() != 3 or 0 in found.shape:
        raise ValueError(f"encoder_outputs of type {type(states).__name__}: give states [rows, states, size]")
    shape = found.shape[:2]
    mask = torch.ones(shape, dtype=torch.bool) if attention_mask is None else integers("attention_mask", attention_mask)
    if mask.shape != shape:
        raise ValueError(
            f"attention_mask of shape {list(mask.shape)} for encoder_outputs of shape {list(found.shape)}: "
            f"give one of {list(shape)}"
        )
    return tuple(Context({STATES: row[:size]}) for row, size in zip(found, _lengths(mask != 0), strict=True))


def _lengths(mask: Tensor) -> list[int]:
    """Of every row of ``mask`` [B, T], which is ones followed by zeros. Raises ValueError for another one."""
    lengths = mask.sum(-1)
    for row, (own, size) in enumerate(zip(mask, lengths.tolist(), strict=True)):
        if size == 0:
            raise ValueError(f"row {row} is padding only: give at least one token")
        if not own[:size].all():
            raise ValueError(
                f"row {row} of the encoder's input has padding before or between tokens: set "
                "tokenizer.padding_side = 'right' and encode again"
            )
    return lengths.tolist()


def _decoder_prompts(given: Mapping[str, object], rows: int, *, values: Values, target: Loaded) -> Inputs:
    start = values.get("decoder_start_token_id")
    start = values.get("bos_token_id") if start is None else start
    ids = given.get("decoder_input_ids")
    if ids is None:
        if start is None:
            raise ValueError("the model names no decoder_start_token_id: give one, or decoder_input_ids")
        tokens = torch.full((rows, 1), int(start))
    else:
        tokens = integers("decoder_input_ids", ids)
        if len(tokens) != rows:
            raise ValueError(f"decoder_input_ids of {len(tokens)} rows for {rows} sources: give one row for each")
        if start is not None and bool((tokens[:, 0] != int(start)).all()):
            tokens = torch.cat((torch.full((rows, 1), int(start)), tokens), dim=1)
    mask = given.get("decoder_attention_mask")
    if mask is not None and not bool(integers("decoder_attention_mask", mask).all()):
        raise ValueError("decoder_attention_mask with zeros: give decoder_input_ids of one length, without padding")
    if int(tokens.min()) < 0 or int(tokens.max()) >= target.lm.vocab_size:
        raise ValueError(
            f"decoder_input_ids {int(tokens.min())}..{int(tokens.max())} leave the model's vocabulary of "
            f"{target.lm.vocab_size}: encode with its own tokenizer"
        )
    return Inputs(padded=tokens, rows=tuple(tuple(row) for row in tokens.tolist()))
