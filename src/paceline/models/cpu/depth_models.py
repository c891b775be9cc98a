"""Compiles the depths of a head without attention to operations that the CPU kernel runs, one model for each."""

import ctypes
from collections.abc import Sequence

from torch import Tensor, nn

from paceline.kernels.cpu.structs import Buffer, Kind, Model, Operation, PairInput
from paceline.kernels.cpu.structs import DepthModel as KernelDepth
from paceline.models.cpu.operations import ACTIVATIONS, OperationWriter, UnsupportedError
from paceline.models.depth_models import (
    Activated,
    Added,
    DepthModel,
    DepthModels,
    DepthOperation,
    Normed,
    Place,
    Product,
)
from paceline.models.native.decoder import DecoderLM

BUFFERS = {Place.INPUT: Buffer.PAIR, Place.STREAM: Buffer.STREAM, Place.INNER: Buffer.INNER}


def compile_depths(
    lm: DecoderLM, models: DepthModels
) -> tuple[ctypes.Array[KernelDepth], Sequence[Tensor], Sequence[object]]:
    """The depths for the kernel; see models/cpu/program.compile_pair_input. ``lm`` is the head's decoder."""
    writer, arrays, compiled = OperationWriter(lm), list[object](), []
    for depth in models.depths:
        operations = [_operation(one, depth, writer) for one in depth.operations]
        array = (Operation * len(operations))(*operations)
        arrays.append(array)
        whole = depth.next_state is Place.INPUT
        pair = PairInput(
            operations=array,
            num_operations=len(operations),
            embedding=-1 if depth.embedding is None else depth.state_size,
            feature_size=depth.state_size,
            output=BUFFERS[depth.next_state],
            output_size=depth.input_size if whole else depth.stream_size,
        )
        compiled.append(KernelDepth(model=_model(lm, depth, writer), pair=pair))
    return (KernelDepth * len(compiled))(*compiled), writer.refs, arrays


def _model(lm: DecoderLM, depth: DepthModel, writer: OperationWriter) -> Model:
    """A model without layers: the embedding and the LM head of ``depth``, with nothing between them."""
    config, size = lm.config, depth.stream_size
    widths = {buffer: 0 for buffer in Buffer} | {
        Buffer.PAIR: depth.input_size,
        **dict.fromkeys((Buffer.STREAM, Buffer.NORMED, Buffer.INNER), size),
    }
    head = writer.head(depth.lm_head, Buffer.NORMED, Buffer.STREAM)
    embedding, panel_rows = (None, 0) if depth.embedding is None else writer.table(depth.embedding)
    return Model(
        hidden=depth.input_size - depth.state_size,
        vocab=head.outer,
        tokens=lm.vocab_size if depth.embedding is None else depth.embedding.num_embeddings,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_positions=lm.max_positions,
        panel_rows=panel_rows,
        width=(ctypes.c_int64 * len(Buffer))(*(widths[buffer] for buffer in Buffer)),
        input=Buffer.STREAM,
        embedding_factor=1.0,
        divisor=depth.divisor,
        embedding=embedding,
        norm=writer.norm(nn.Identity(), Buffer.STREAM, Buffer.NORMED, size),
        head=head,
    )


def _operation(one: DepthOperation, depth: DepthModel, writer: OperationWriter) -> Operation:
    """One operation of ``depth``."""
    size = depth.stream_size
    match one:
        case Product(layer, source, target):
            return writer.linear(layer, BUFFERS[source], BUFFERS[target])
        case Normed(norm, source, target, factor):
            width = depth.state_size if source is Place.INPUT else size
            return writer.norm(norm, BUFFERS[source], BUFFERS[target], width, factor=factor)
        case Added(source, factor):
            offset = depth.state_size if source is Place.INPUT else 0
            return writer.add(BUFFERS[source], Buffer.STREAM, size, offset=offset, factor=factor)
        case Activated(function, place):
            if function not in ACTIVATIONS:
                raise UnsupportedError("an activation that the kernel does not have")
            at = BUFFERS[place]
            return Operation(kind=Kind.ACTIVATE, variant=ACTIVATIONS[function], source=at, target=at, inner=size)
