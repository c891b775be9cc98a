"""Small native models whose weights lie as a loaded checkpoint's do."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

from paceline.models.loading import assemble
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.quantization import quantise
from tests.models.layouts import pair


@cache
def native(layout, dtype):
    """The native model of a layout; transformers holds some matrices of GPT-2 the other way round."""
    lm = deepcopy(pair(layout, dtype)[1])
    for parameter in lm.parameters():
        parameter.data = parameter.data.contiguous()
    return lm


@cache
def quantised(layout, dtype, quantization, source=None):
    """The same with integers for matrices, those of a model in the precision ``source``, its own where not given."""
    lm = native(layout, source or dtype)
    state = quantise(lm.state_dict(), quantization, tied_head=lm.config.tied_head)
    scales = {name: tensor for name, tensor in state.items() if name.endswith(".scale")}
    state = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()
    } | scales
    return assemble(lm.config, state, device="cpu", quantization=quantization)


def head_of(lm, layers):
    """What is left of ``lm`` after its first ``layers``, as a decoder of its own that shares the rest with it."""
    rest = DecoderLM(replace(lm.config, num_layers=lm.num_layers - layers)).to(lm.dtype).requires_grad_(False)
    for own, given in zip(rest.blocks, lm.blocks[layers:], strict=True):
        own.load_state_dict(given.state_dict())
    rest.embed, rest.position, rest.norm, rest.head = lm.embed, lm.position, lm.norm, lm.head
    return rest
