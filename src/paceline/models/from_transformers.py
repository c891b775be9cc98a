"""Native decoders over the weights of loaded transformers models, without a second copy.

The decoder fuses matrices that transformers stores separately (models/native/fused_weights). The fused tensor is made
block by block, and the model's parameters become views of it: both share memory, and see each other's changes.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, ForwardRef, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn

from paceline.models.directory import ModelError
from paceline.models.families import FAMILIES, Family
from paceline.models.families.base import ACTIVATIONS, COPY
from paceline.models.loading import FLOATS, ONE_TABLE, assemble, check, configure, dtype_name, find_family, stored_names
from paceline.models.native.decoder import DecoderConfig, DecoderLM
from paceline.models.native.fused_weights import fused_groups, split_parts
from paceline.text.special_tokens import start_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    TransformersModel: TypeAlias = PreTrainedModel
else:  # transformers' modelling code is not imported for the name of a type
    TransformersModel = ForwardRef("PreTrainedModel")


def is_transformers_model(model: object) -> TypeGuard[TransformersModel]:
    """Whether ``model`` is a loaded transformers model; adapters around one are not."""
    modelling = sys.modules.get("transformers.modeling_utils")  # loaded wherever there is a model
    return modelling is not None and isinstance(model, modelling.PreTrainedModel)


def from_transformers(model: TransformersModel) -> DecoderLM:
    """A decoder over the weights of ``model``, which stays usable and computes what it did before.

    ``model`` is written to: parameters that the decoder fuses become views of the fused tensors. In-place changes of
    parameters are shared from then on; after replacing or converting one the decoder has the old (``is_current``).
    Calling this again copies nothing. Raises ModelError, before anything is changed, for a model of an unsupported
    architecture or whose activation is not the family's, and for parameters that are not plain floats of one precision
    on one device.
    """
    _, device = placement(model)
    name = type(model).__name__
    raw: dict[str, object] = model.config.to_dict()
    family = find_family(raw, name)
    parameters = {own: parameter for own, parameter, _ in _parts(model, family)}
    parts = {own: part for own, _, part in _parts(model, family)}
    config = configure({**raw, "tie_word_embeddings": _is_tied(parts)}, name)
    for own in [own for own in parts if own.endswith(COPY)]:
        if not _is_same(parts.pop(own), parts["embed.weight"]):
            raise ModelError(
                f"{name}: embeddings of encoder and decoder are tensors of their own: {ONE_TABLE}, or tie them "
                "(model.config.tie_word_embeddings = True, then model.tie_weights())"
            )
    _check_activation(raw, config, name)
    check(config, parts, path=name, stored=lambda: stored_names(family, config))
    state: dict[str, Tensor] = {}
    # Parameters that were made in inference mode could not be trained any more.
    with torch.inference_mode(False), torch.no_grad():
        for whole, names in list(fused_groups(parts)):
            pieces = [parts.pop(part) for part in names]
            if len(pieces) == 1:
                state[whole] = pieces[0]
            else:
                shared = {part: parameter for part in names if (parameter := parameters[part]) is not None}
                state[whole] = _share(config, whole, pieces, shared)
    if config.tied_head:
        state.pop("head.weight", None)
    return assemble(config, state, device=device)


def is_current(lm: DecoderLM, model: TransformersModel) -> bool:
    """Whether ``lm``, made from ``model``, still shares the memory of all its weights."""
    family = FAMILIES.get(model.config.model_type)
    if family is None:
        return False
    state = lm.state_dict()
    own_tensors = state | split_parts(lm.config, state)
    num_shared = 0
    for own, parameter, part in _parts(model, family):
        if parameter is None:
            num_shared += part.numel()
            continue
        tied = own.endswith(COPY) or (own == "head.weight" and lm.config.tied_head)
        other = own_tensors.get("embed.weight" if tied else own)
        if other is None or not _is_same(part, other):
            return False
        num_shared += 0 if tied else part.numel()
    return num_shared == sum(tensor.numel() for tensor in state.values())


def placement(model: TransformersModel) -> tuple[torch.dtype, torch.device]:
    """The one precision and the one device of ``model``. Raises ModelError as ``from_transformers`` does."""
    name, raw = type(model).__name__, model.config.to_dict()
    find_family(raw, name)
    if model.get_output_embeddings() is None:
        raise ModelError(f"{name} has no language-model head; load it with AutoModelForCausalLM")
    if raw.get("quantization_config"):
        raise ModelError(f"{name} is quantized; load it without quantization_config, or call model.dequantize()")
    first, found = next(model.named_parameters())
    for own, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ModelError(f"{name}: {own} has no storage (meta); load the model without offloading")
        plain = type(parameter) is nn.Parameter and type(parameter.data) is Tensor
        if not plain or parameter.dtype not in FLOATS.values():
            raise ModelError(
                f"{name}: {own} is no plain floating-point tensor ({type(parameter).__name__} of "
                f"{dtype_name(parameter.dtype)}); load the model without quantization or sharding"
            )
        if parameter.device != found.device:
            raise ModelError(
                f"{name}: {first} is on {found.device}, {own} on {parameter.device}; "
                "put the whole model on one device with model.to(...)"
            )
        if parameter.dtype != found.dtype:
            raise ModelError(
                f"{name}: {first} is {dtype_name(found.dtype)}, {own} {dtype_name(parameter.dtype)}; "
                "give the whole model one precision with model.to(...)"
            )
    return found.dtype, found.device


def read_eos(model: TransformersModel) -> tuple[int, ...]:
    """End-of-text ids: of the generation config if it gives any, else of the config, else none."""
    return _read(model, "eos_token_id")


def read_start(model: TransformersModel) -> tuple[int, ...]:
    """The tokens that the output of an encoder-decoder begins with, likewise."""
    return start_tokens(_read(model, "decoder_start_token_id"), _read(model, "forced_bos_token_id"))


def _read(model: TransformersModel, field: str) -> tuple[int, ...]:
    generation = model.generation_config
    found = None if generation is None else getattr(generation, field)
    if found is None:
        found = model.config.to_dict().get(field)
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(int(token) for token in found)


def _check_activation(raw: dict[str, object], config: DecoderConfig, name: str) -> None:
    """Raise ModelError where a family reads ``hidden_act`` otherwise than transformers, which made its layers by it."""
    own = raw.get("hidden_act")
    if own in ACTIVATIONS and ACTIVATIONS[str(own)] is not config.ffn.activation:
        raise ModelError(
            f"{name}: its layers were made with hidden_act={own!r}, which is not the activation that its weights are "
            "for; load it with transformers 5.18 or later, which corrects the config, or give backend='hf' to run it "
            "as it is"
        )


def _parts(model: TransformersModel, family: Family) -> Iterator[tuple[str, Tensor | None, Tensor]]:
    """Our name of each saved tensor, the parameter or buffer, and its content as we read it.

    None in its place where a family adds a part that the model does not have.
    """
    saved = model.state_dict().keys()
    buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in saved)
    for stored, tensor in (*model.named_parameters(remove_duplicate=False), *buffers):
        for own, part in family.read(stored, tensor.data):
            from_it = part.untyped_storage().data_ptr() == tensor.data.untyped_storage().data_ptr()
            yield own, tensor if from_it else None, part


def _is_tied(parts: dict[str, Tensor]) -> bool:
    """Whether head and embedding are one tensor in fact, whatever the config says."""
    if "head.weight" not in parts or "embed.weight" not in parts:
        return False
    return _is_same(parts["head.weight"], parts["embed.weight"])


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether both are the same numbers in the same memory."""
    place, other_place = (
        (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in (one, other)
    )
    return place == other_place


def _share(config: DecoderConfig, whole: str, pieces: list[Tensor], parameters: dict[str, Tensor]) -> Tensor:
    """One tensor of ``pieces``, of which ``parameters`` become views; no copy if they are already adjacent."""
    if _is_adjacent(pieces):
        rows = sum(piece.shape[0] for piece in pieces)
        return pieces[0].as_strided((rows, *pieces[0].shape[1:]), pieces[0].stride())
    joined = torch.cat(pieces)
    for name, view in split_parts(config, {whole: joined}).items():
        if name in parameters:
            parameters[name].data = view
    return joined


def _is_adjacent(pieces: list[Tensor]) -> bool:
    """Whether ``pieces`` are adjacent in one storage."""
    after = pieces[0].storage_offset()
    for piece in pieces:
        if not piece.is_contiguous() or piece.storage_offset() != after:
            return False
        if piece.untyped_storage().data_ptr() != pieces[0].untyped_storage().data_ptr():
            return False
        after += piece.numel()
    return True
