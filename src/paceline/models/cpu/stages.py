"""Compiles the stages of a head without attention to operations that the CPU kernel runs, one model for each depth."""

import ctypes
from collections.abc import Sequence

from torch import Tensor, nn

from paceline.kernels.cpu.structs import Buffer, Kind, Model, Operation, PairInput
from paceline.kernels.cpu.structs import Stage as KernelStage
from paceline.models.cpu.operations import ACTIVATIONS, OperationWriter, UnsupportedError
from paceline.models.draft_stages import Activated, Added, DraftStages, Normed, Place, Product, Stage, Step
from paceline.models.native.decoder import DecoderLM

BUFFERS = {Place.INPUT: Buffer.PAIR, Place.STREAM: Buffer.STREAM, Place.INNER: Buffer.INNER}


def compile_stages(
    lm: DecoderLM, stages: DraftStages
) -> tuple[ctypes.Array[KernelStage], Sequence[Tensor], tuple[object, ...]]:
    """The stages for the kernel, the weights that they point to, and the arrays to keep alive.

    ``lm`` is the head's decoder. Raises UnsupportedError for a part that the kernel lacks.
    """
    writer, arrays, compiled = OperationWriter(lm), list[object](), []
    for stage in stages.stages:
        operations = [_operation(step, stage, writer) for step in stage.steps]
        array = (Operation * len(operations))(*operations)
        arrays.append(array)
        whole = stage.next_state is Place.INPUT
        pair = PairInput(
            operations=array,
            num_operations=len(operations),
            embedding=-1 if stage.embedding is None else stage.state_size,
            feature_size=stage.state_size,
            output=BUFFERS[stage.next_state],
            output_size=stage.input_size if whole else stage.stream_size,
        )
        compiled.append(KernelStage(model=_model(lm, stage, writer), pair=pair))
    return (KernelStage * len(compiled))(*compiled), writer.refs, tuple(arrays)


def _model(lm: DecoderLM, stage: Stage, writer: OperationWriter) -> Model:
    """A model without layers: the embedding and the LM head of ``stage``, with nothing between them."""
    config, size = lm.config, stage.stream_size
    widths = {buffer: 0 for buffer in Buffer} | {
        Buffer.PAIR: stage.input_size,
        **dict.fromkeys((Buffer.STREAM, Buffer.NORMED, Buffer.INNER), size),
    }
    head = writer.head(stage.lm_head, Buffer.NORMED, Buffer.STREAM)
    embedding, panel_rows = (None, 0) if stage.embedding is None else writer.table(stage.embedding)
    return Model(
        hidden=stage.input_size - stage.state_size,
        vocab=head.outer,
        tokens=lm.vocab_size if stage.embedding is None else stage.embedding.num_embeddings,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_positions=lm.max_positions,
        panel_rows=panel_rows,
        width=(ctypes.c_int64 * len(Buffer))(*(widths[buffer] for buffer in Buffer)),
        input=Buffer.STREAM,
        embedding_factor=1.0,
        divisor=stage.divisor,
        embedding=embedding,
        norm=writer.norm(nn.Identity(), Buffer.STREAM, Buffer.NORMED, size),
        head=head,
    )


def _operation(step: Step, stage: Stage, writer: OperationWriter) -> Operation:
    """One step of ``stage``."""
    size = stage.stream_size
    match step:
        case Product(layer, source, target):
            return writer.linear(layer, BUFFERS[source], BUFFERS[target])
        case Normed(norm, source, target, factor):
            width = stage.state_size if source is Place.INPUT else size
            return writer.norm(norm, BUFFERS[source], BUFFERS[target], width, factor=factor)
        case Added(source, factor):
            offset = stage.state_size if source is Place.INPUT else 0
            return writer.add(BUFFERS[source], Buffer.STREAM, size, offset=offset, factor=factor)
        case Activated(function, place):
            if function not in ACTIVATIONS:
                raise UnsupportedError("an activation that the kernel does not have")
            at = BUFFERS[place]
            return Operation(kind=Kind.ACTIVATE, variant=ACTIVATIONS[function], source=at, target=at, inner=size)
