"""Writes the operations of a native decoder's parts for the CPU kernel, over the parts' own weights."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.kernels.cpu.structs import Activation, Buffer, Kind, NormVariant, Operation, WeightFormat
from paceline.models.cpu.packed_weights import PackedEmbedding, PackedLayer, set_weight
from paceline.models.native.blocks import (
    Attention,
    Block,
    CrossAttention,
    FeedForwardBlock,
    NormOfSumBlock,
    ParallelBlock,
    Part,
    PostNormBlock,
    ScaledBlock,
)
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import (
    BiasedRMSNorm,
    GatedFFN,
    LateRMSNorm,
    OffsetRMSNorm,
    PlainFFN,
    RMSNorm,
    gelu_tanh,
)
from paceline.models.native.pair_block import PairBlock
from paceline.models.native.qkv import NormRotateQK, PrepareQKV, RotateInterleavedQKV, RotateQK, ScaleQuery, SplitQKV
from paceline.models.native.relative import RelativePositions

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NORMS: dict[type[nn.Module], NormVariant] = {
    RMSNorm: NormVariant.RMS,
    LateRMSNorm: NormVariant.RMS_LATE,
    OffsetRMSNorm: NormVariant.RMS_OFFSET,
    BiasedRMSNorm: NormVariant.RMS,
    nn.LayerNorm: NormVariant.LAYER,
}
BLOCKS = (Block, ScaledBlock, PostNormBlock, ParallelBlock, NormOfSumBlock, FeedForwardBlock)
ACTIVATIONS: dict[Callable[[Tensor], Tensor], Activation] = {
    F.silu: Activation.SILU,
    F.gelu: Activation.GELU,
    gelu_tanh: Activation.GELU_TANH,
    F.relu: Activation.RELU,
}


class UnsupportedError(ValueError):
    """A decoder with a part that the kernel does not support."""


class OperationWriter:
    """The operations of a decoder's parts, in the order they run."""

    def __init__(self, lm: DecoderLM) -> None:
        config = lm.config
        self.dtype, self.refs = lm.dtype, list[Tensor]()
        self.rotated = 0 if config.rotary is None else 2 * len(config.rotary.inverse_frequencies)
        heads, self.interleaved = config.num_heads * config.head_dim, config.attention.interleaved
        self.widths = {
            Buffer.STREAM: config.hidden_size,
            Buffer.NORMED: config.hidden_size,
            Buffer.HEADS: heads + 2 * config.num_kv_heads * config.head_dim,
            Buffer.ATTENDED: heads,
            Buffer.INNER: config.ffn_size * (2 if config.ffn.gated else 1),
            Buffer.GATED: config.ffn_size,
            Buffer.ATTENTION_OUT: config.hidden_size,
            Buffer.PAIR: 2 * config.hidden_size,
        }

    def point(self, tensor: Tensor, dtype: torch.dtype | None = None) -> int:
        """A pointer to ``tensor``, of the model's precision or of ``dtype``; it is kept alive."""
        if tensor.dtype != (dtype or self.dtype):
            raise UnsupportedError(f"a weight of {tensor.dtype} in a model of {self.dtype}")
        if not tensor.is_contiguous():
            raise UnsupportedError("a matrix that is not row-major")
        self.refs.append(tensor)
        return tensor.data_ptr()

    def block(self, block: nn.Module, parts: Part) -> Iterator[Operation]:
        """The ``parts`` of one layer."""
        kind = type(block)
        if isinstance(block, PairBlock):
            if parts is not Part.BOTH:
                raise UnsupportedError("a PairBlock without one of its parts")
            yield from self.pair_block(block)
            return
        if kind not in BLOCKS or not isinstance(block, Block):
            raise UnsupportedError(f"a {kind.__name__}")
        if block.embedding_norm is not None:
            yield self.norm(block.embedding_norm, Buffer.STREAM, Buffer.STREAM)
        if kind is ParallelBlock and parts is Part.BOTH:
            yield from self.parallel_block(block)
            return
        if Part.ATTENTION in parts and kind is not FeedForwardBlock:
            own, output = block.attention, block.attention.output
            yield from self.sublayer(block, block.attention_norm, partial(self.attention, own), output)
            if block.cross is not None and block.cross_norm is not None:
                cross, output = block.cross, block.cross.output
                yield from self.sublayer(block, block.cross_norm, partial(self.cross, cross), output)
        if Part.FFN in parts:
            output = block.ffn.down
            yield from self.sublayer(block, block.ffn_norm, partial(self.ffn, block.ffn), output, Buffer.GATED)

    def sublayer(
        self,
        block: Block,
        norm: nn.Module,
        run: Callable[[Buffer], Iterator[Operation]],
        output: nn.Linear,
        made: Buffer = Buffer.ATTENDED,
    ) -> Iterator[Operation]:
        """What ``run`` makes of the stream in ``made``, times the matrix ``output``, added to the stream; the norm is
        where ``block`` has it.
        """
        if isinstance(block, NormOfSumBlock):
            yield from run(Buffer.STREAM)
            yield self.linear(output, made, Buffer.STREAM, Kind.LINEAR_ADD)
            yield self.norm(norm, Buffer.STREAM, Buffer.STREAM)
        elif isinstance(block, PostNormBlock):
            yield from run(Buffer.STREAM)
            yield self.linear(output, made, Buffer.NORMED)
            yield self.norm(norm, Buffer.NORMED, Buffer.NORMED)
            yield self.add(Buffer.NORMED, Buffer.STREAM)
        else:
            first = Buffer.STREAM if isinstance(norm, nn.Identity) else Buffer.NORMED
            if first is Buffer.NORMED:
                yield self.norm(norm, Buffer.STREAM, Buffer.NORMED)
            yield from run(first)
            factor = block.factor if isinstance(block, ScaledBlock) else 1.0
            yield self.linear(output, made, Buffer.STREAM, Kind.LINEAR_ADD, factor)

    def parallel_block(self, block: Block) -> Iterator[Operation]:
        """Attention and feed-forward of the same stream."""
        if block.cross is not None:
            raise UnsupportedError("a ParallelBlock with cross-attention")
        yield self.norm(block.attention_norm, Buffer.STREAM, Buffer.NORMED)
        yield from self.attention(block.attention, Buffer.NORMED)
        yield self.linear(block.attention.output, Buffer.ATTENDED, Buffer.ATTENTION_OUT)
        yield self.norm(block.ffn_norm, Buffer.STREAM, Buffer.NORMED)
        yield from self.ffn(block.ffn, Buffer.NORMED)
        yield self.linear(block.ffn.down, Buffer.GATED, Buffer.NORMED)
        yield self.add(Buffer.ATTENTION_OUT, Buffer.NORMED)
        yield self.add(Buffer.NORMED, Buffer.STREAM)

    def pair_block(self, block: PairBlock) -> Iterator[Operation]:
        """A first layer whose attention reads an embedding and a feature; the residual is the feature."""
        size = self.widths[Buffer.STREAM]
        residual = self.norm(nn.Identity(), Buffer.PAIR, Buffer.STREAM, size, offset=size, target_offset=0)
        if not block.norm_before_residual:
            yield residual
        yield self.norm(block.attention_norm, Buffer.PAIR, Buffer.PAIR, size)
        yield self.norm(block.feature_norm, Buffer.PAIR, Buffer.PAIR, size, offset=size)
        if block.norm_before_residual:
            yield residual
        yield from self.attention(block.attention, Buffer.PAIR)
        yield self.linear(block.attention.output, Buffer.ATTENDED, Buffer.STREAM, Kind.LINEAR_ADD)
        yield self.norm(block.ffn_norm, Buffer.STREAM, Buffer.NORMED)
        yield from self.ffn(block.ffn, Buffer.NORMED)
        yield self.linear(block.ffn.down, Buffer.GATED, Buffer.STREAM, Kind.LINEAR_ADD)

    def cross(self, cross: CrossAttention, source: Buffer) -> Iterator[Operation]:
        """From the input of the attention to an encoder's states to ATTENDED."""
        if self.interleaved:
            raise UnsupportedError("cross-attention in a decoder of interleaved heads")
        yield self.linear(cross.query, source, Buffer.HEADS)
        yield Operation(kind=Kind.ATTEND_SOURCE, source=Buffer.HEADS, target=Buffer.ATTENDED, factor=cross.factor)

    def relative(self, positions: RelativePositions | None) -> dict[str, object]:
        """The fields of Model for what is added to the scores."""
        if positions is None:
            return {}
        buckets = positions.buckets_by_distance()
        self.refs.append(buckets)
        weight = self.point(positions.weight)
        return dict(relative=weight, buckets=buckets.data_ptr(), num_distances=len(buckets))

    def attention(self, attention: Attention, source: Buffer) -> Iterator[Operation]:
        """From the block's input to ATTENDED."""
        yield self.linear(attention.qkv, source, Buffer.HEADS)
        yield from self.heads(attention.heads, 1.0)
        yield Operation(kind=Kind.ATTEND, source=Buffer.HEADS, target=Buffer.ATTENDED)

    def heads(self, split: PrepareQKV, factor: float) -> Iterator[Operation]:
        """Norms and rotary embedding; queries stay in HEADS, keys and values go to the cache."""
        if isinstance(split, ScaleQuery):
            yield from self.heads(split.inner, factor * split.factor)
            return
        if isinstance(split, NormRotateQK):
            sizes = (split.sizes[0] * self.head_dim(split), split.sizes[1] * self.head_dim(split))
            places = ((split.query_norm, split.query_size, 0, sizes[0]), (split.key_norm, split.key_size, *sizes))
            for norm, size, offset, whole in places:
                one = self.norm(norm, Buffer.HEADS, Buffer.HEADS, size, offset=offset)
                one.count = whole // size
                yield one
        elif not isinstance(split, SplitQKV | RotateQK | RotateInterleavedQKV):
            raise UnsupportedError(f"heads of {type(split).__name__}")
        rotary_dim = 0 if isinstance(split, SplitQKV) else self.rotated
        yield Operation(kind=Kind.ROTATE, source=Buffer.HEADS, target=Buffer.HEADS, inner=rotary_dim, factor=factor)

    def head_dim(self, split: NormRotateQK) -> int:
        """The head size."""
        return self.widths[Buffer.HEADS] // sum(split.sizes)

    def ffn(self, ffn: nn.Module, source: Buffer) -> Iterator[Operation]:
        """From the block's input to GATED."""
        if not isinstance(ffn, GatedFFN | PlainFFN) or ffn.activation not in ACTIVATIONS:
            raise UnsupportedError("a feed-forward with an activation that the kernel does not have")
        gated = isinstance(ffn, GatedFFN)
        yield self.linear(ffn.gate_up if isinstance(ffn, GatedFFN) else ffn.up, source, Buffer.INNER)
        yield Operation(
            kind=Kind.GATE if gated else Kind.ACTIVATE,
            variant=ACTIVATIONS[ffn.activation],
            source=Buffer.INNER,
            target=Buffer.GATED,
            inner=self.widths[Buffer.GATED],
        )

    def norm(
        self,
        norm: nn.Module,
        source: Buffer,
        target: Buffer,
        size: int | None = None,
        *,
        offset: int = 0,
        target_offset: int | None = None,
        factor: float = 1.0,
    ) -> Operation:
        """A norm over whole rows, or over ``size`` elements from ``offset`` on, written from ``target_offset`` (None:
        from ``offset``), times ``factor``. One that is an identity copies.
        """
        place = dict(source=source, target=target, inner=size or self.widths[source], count=1, factor=factor)
        place |= dict(offset=offset, outer=offset if target_offset is None else target_offset)
        if isinstance(norm, nn.Identity):
            return Operation(kind=Kind.NORM, variant=NormVariant.COPY, **place)
        if type(norm) not in NORMS or not isinstance(norm, RMSNorm | BiasedRMSNorm | nn.LayerNorm):
            raise UnsupportedError(f"a {type(norm).__name__}")
        bias = None if isinstance(norm, RMSNorm) else norm.bias
        return Operation(
            kind=Kind.NORM,
            variant=NORMS[type(norm)],
            **place,
            eps=norm.eps,
            weight=None if norm.weight is None else self.point(norm.weight),
            bias=None if bias is None else self.point(bias),
        )

    def linear(
        self, layer: nn.Linear, source: Buffer, target: Buffer, kind: Kind = Kind.LINEAR, factor: float = 1.0
    ) -> Operation:
        """A linear layer."""
        self.check_layout(layer)
        product = Operation(
            kind=kind,
            source=source,
            target=target,
            inner=layer.in_features,
            outer=layer.out_features,
            factor=factor,
            bias=None if layer.bias is None else self.point(layer.bias),
        )
        set_weight(product, layer, self.point)
        return product

    def check_layout(self, layer: nn.Module) -> None:
        """Raise UnsupportedError if ``layer`` was packed for a model of another precision."""
        if isinstance(layer, PackedLayer) and not layer.fits(self.dtype):
            raise UnsupportedError(f"a packed matrix in a model of {self.dtype} that was packed for another precision")

    def head(
        self, layer: nn.Linear | nn.Embedding, source: Buffer, target: Buffer, bias: Tensor | None = None
    ) -> Operation:
        """An LM head, with a matrix of its own or tied to an embedding, and a ``bias`` of the logits."""
        if isinstance(layer, nn.Linear):
            product = self.linear(layer, source, target)
        else:
            inner, outer = layer.embedding_dim, layer.num_embeddings
            product = Operation(kind=Kind.LINEAR, source=source, target=target, inner=inner, outer=outer)
            if isinstance(layer, PackedEmbedding):
                self.check_layout(layer)
                product.variant, product.weight = WeightFormat.PACKED, self.point(layer.panels)
            else:
                product.weight = self.point(layer.weight)
        if bias is not None:
            product.bias = self.point(bias)
        return product

    def table(self, embedding: nn.Embedding) -> tuple[int, int]:
        """A pointer to an embedding table, and the rows of a panel of it, 0 if it is not packed."""
        if isinstance(embedding, PackedEmbedding):
            return self.point(embedding.panels), embedding.layout.width
        return self.point(embedding.weight), 0

    def add(
        self, source: Buffer, target: Buffer, size: int | None = None, *, offset: int = 0, factor: float = 1.0
    ) -> Operation:
        """One buffer, or ``size`` elements of it from ``offset`` on, times ``factor``, added to another."""
        size = size or self.widths[source]
        return Operation(kind=Kind.ADD, source=source, target=target, inner=size, offset=offset, factor=factor)
