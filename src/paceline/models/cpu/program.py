"""Compiles a native decoder to the list of operations that the CPU kernel runs, on the decoder's own weights."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.kernels.cpu.structs import BlockInput as KernelBlockInput
from paceline.kernels.cpu.structs import Buffer, Kind, Model, Operation
from paceline.kernels.cpu.structs import PairInput as KernelPairInput
from paceline.models.base import InputProjection, PairInput
from paceline.models.block_input import BlockInput
from paceline.models.cpu.operations import DTYPES, OperationWriter, UnsupportedError
from paceline.models.native.blocks import Part, parts_of
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.pair_block import PairBlock
from paceline.models.sublayers import SkippedSublayers


@dataclass(frozen=True, slots=True)
class Program:
    """The kernel's model, and the tensors and arrays to keep alive."""

    model: Model
    refs: tuple[object, ...]


def compile_program(lm: DecoderLM, skipped: SkippedSublayers | None = None) -> Program:
    """The program of ``lm`` over its weights; what is ``skipped`` has no operations.

    Raises UnsupportedError naming what the kernel lacks.
    """
    if lm.dtype not in DTYPES or lm.device.type != "cpu":
        raise UnsupportedError(f"{lm.dtype} on {lm.device}")
    bias = _logits_bias(lm)
    if bias is not None and lm.logits_divisor != 1.0:
        raise UnsupportedError("a divisor and a bias of the logits")
    writer = OperationWriter(lm)
    starts, operations = [0], []
    for layer, block in enumerate(lm.blocks):
        operations += writer.block(block, Part.BOTH if skipped is None else parts_of(skipped, layer))
        starts.append(len(operations))
    config = lm.config
    head_dim, heads, kv_heads = config.head_dim, config.num_heads, config.num_kv_heads
    interleaved = config.attention.interleaved  # query, key and value of a head are adjacent
    embedding, panel_rows = writer.table(lm.embed)
    array = (Operation * len(operations))(*operations)
    layers = (ctypes.c_int64 * len(starts))(*starts)
    model = Model(
        hidden=config.hidden_size,
        vocab=lm.vocab_size,
        tokens=lm.embed.num_embeddings,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=lm.max_positions,
        query=0,
        query_step=3 * head_dim if interleaved else head_dim,
        key=head_dim if interleaved else heads * head_dim,
        key_step=3 * head_dim if interleaved else head_dim,
        value=2 * head_dim if interleaved else (heads + kv_heads) * head_dim,
        value_step=3 * head_dim if interleaved else head_dim,
        float32_rotary=config.rotary is not None and config.rotary.wide,
        width=(ctypes.c_int64 * len(Buffer))(*(writer.widths[buffer] for buffer in Buffer)),
        scale=head_dim**-0.5,
        panel_rows=panel_rows,
        input=Buffer.PAIR if any(isinstance(block, PairBlock) for block in lm.blocks[:1]) else Buffer.STREAM,
        embedding_factor=lm.embedding_factor,
        divisor=lm.logits_divisor,
        embedding=embedding,
        position=None if lm.position is None else writer.point(lm.position.weight),
        **writer.relative(lm.relative),
        operations=array,
        layers=layers,
        norm=writer.norm(lm.norm, Buffer.STREAM, Buffer.NORMED),
        head=writer.head(lm.embed if lm.head is None else lm.head, Buffer.NORMED, Buffer.STREAM, bias),
    )
    return Program(model, (array, layers, *writer.refs))


def _logits_bias(lm: DecoderLM) -> Tensor | None:
    """What is added to the logits: minus infinity for tokens that are never generated. Raises UnsupportedError."""
    if lm.num_generated is None:
        return lm.logits_bias
    if lm.logits_bias is not None:
        raise UnsupportedError("a bias of the logits, and tokens that are never generated")
    bias = torch.zeros(lm.vocab_size, dtype=lm.dtype)
    bias[lm.num_generated :] = -torch.inf
    return bias


def compile_input_projection(
    lm: DecoderLM, projection: InputProjection
) -> tuple[ctypes.Array[Operation], Sequence[Tensor], Sequence[object]]:
    """The norm and linear layer of ``projection``, and the weights that they point to. Raises UnsupportedError."""
    writer, size = OperationWriter(lm), projection.product.in_features
    norm = writer.norm(projection.norm, Buffer.STREAM, Buffer.NORMED, size)
    product = writer.linear(projection.product, Buffer.NORMED, Buffer.STREAM)
    return (Operation * 2)(norm, product), writer.refs, ()


def compile_pair_input(lm: DecoderLM, pairs: PairInput) -> tuple[KernelPairInput, Sequence[Tensor], Sequence[object]]:
    """How the kernel reads ``pairs``, the weights that it points to, and the arrays to keep alive.

    Raises UnsupportedError for a part that the kernel lacks.
    """
    writer, size = OperationWriter(lm), lm.config.hidden_size
    embedding, feature = (0, size) if pairs.embedding_first else (size, 0)
    operations = [
        writer.norm(norm, Buffer.PAIR, Buffer.PAIR, size, offset=offset)
        for norm, offset in ((pairs.embedding_norm, embedding), (pairs.feature_norm, feature))
        if norm is not None
    ]
    if pairs.product is not None:
        operations.append(writer.linear(pairs.product, Buffer.PAIR, Buffer.STREAM))
    array = (Operation * len(operations))(*operations)
    read = KernelPairInput(
        operations=array,
        num_operations=len(operations),
        embedding=embedding,
        feature=feature,
        feature_size=size,
        zero_first=pairs.zero_first,
        output=Buffer.NORMED if pairs.normed_output else Buffer.STREAM,
        output_size=size,
    )
    return read, writer.refs, (array,)


def compile_block_input(
    lm: DecoderLM, block: BlockInput
) -> tuple[KernelBlockInput, Sequence[Tensor], Sequence[object]]:
    """How the kernel reads ``block``; see ``compile_pair_input``."""
    writer, stream = OperationWriter(lm), Buffer.STREAM
    norms = [writer.norm(norm, stream, stream, lm.config.head_dim) for norm in block.key_norms]
    array = (Operation * len(norms))(*norms)
    read = KernelBlockInput(
        slots=block.num_slots,
        first_slot=block.first_slot,
        product=writer.linear(block.product, stream, stream),
        norm=writer.norm(block.norm, stream, stream),
        keys_values=writer.linear(block.keys_values, stream, stream),
        key_norms=array if norms else None,
        mask=writer.point(block.mask),
    )
    if block.markov is not None:
        before, after = block.markov
        read.before = writer.point(before.weight)
        read.after = writer.linear(after, stream, stream, Kind.LINEAR_ADD)
    if block.confidence is not None:
        read.confidence = writer.linear(block.confidence, stream, stream)
    return read, writer.refs, (array,)
