"""The native decoder: a transformer with static shapes over a slot cache.

B rows, n nodes, T sequence length, V vocabulary, H hidden size.
"""

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.core.cache import SlotCache, View, Zeros
from paceline.core.tree import Resume, Tree
from paceline.models.base import LogitsFor, Output
from paceline.models.native.attention import Attend, CacheAttention, CausalAttention, Source
from paceline.models.native.blocks import Part, make_block, parts_of
from paceline.models.native.config import DecoderConfig
from paceline.models.native.flex_attention import AttentionFactory, select_attention
from paceline.models.native.layers import embedding_factor, make_rotary, table
from paceline.models.native.relative import RelativePositions
from paceline.models.sublayers import SkippedSublayers
from paceline.models.wrapped import DecoderOnly, WrappedLM


class DecoderLM(DecoderOnly, nn.Module):
    """Token embedding, blocks, final norm and output head; an ``LM`` (models/base)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size, self.max_positions = config.vocab_size, config.max_positions
        self.num_layers = config.num_layers
        # The sliding window is not applied: where there is one, no sequence may be longer.
        self.max_slots = config.window
        self.group = config.num_heads // config.num_kv_heads  # query heads per key-value head
        self.embed = table(config.vocab_size, config.hidden_size)
        self.rotary = None if config.rotary is None else make_rotary(config.rotary)
        self.position = table(config.max_positions, config.hidden_size) if config.learned_positions else None
        relative = config.relative
        self.relative = None if relative is None else RelativePositions(relative, config.num_heads, both_ways=False)
        self.blocks = nn.ModuleList(make_block(config, layer) for layer in range(config.num_layers))
        self.norm = config.norm(config.hidden_size, config.norm_eps) if config.final_norm else nn.Identity()
        self.logits_bias = nn.Parameter(torch.empty(config.vocab_size)) if config.logits_bias else None
        self.head = None if config.tied_head else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.logits_divisor = config.multipliers.logits
        self.num_generated = config.num_generated
        self.dropout = 0.0  # training only
        self.attention: AttentionFactory = select_attention  # over trees; another one only to be compared with it

    def share_ends(self, target: "DecoderLM") -> None:
        """Take what surrounds the blocks of ``target``: embeddings, positions, the norm and the LM head."""
        self.embed, self.position, self.rotary, self.relative = (
            target.embed,
            target.position,
            target.rotary,
            target.relative,
        )
        self.norm, self.head, self.logits_bias = target.norm, target.head, target.logits_bias

    @property
    def slot_bytes(self) -> int:
        """Keys and values of one token over all layers, in bytes."""
        sizes = 2 * self.config.num_layers * self.config.num_kv_heads * self.config.head_dim
        return sizes * self.dtype.itemsize

    @property
    def dtype(self) -> torch.dtype:
        return next(self.embed.parameters()).dtype  # also of a packed embedding

    @property
    def embedding_factor(self) -> float:
        """What embeddings are multiplied with."""
        factors = self.config.multipliers
        return embedding_factor(factors.embedding, self.dtype) if factors.round_embedding else factors.embedding

    @property
    def device(self) -> torch.device:
        return next(self.embed.parameters()).device

    def new_cache(self, rows: int, capacity: int, *, zeros: Zeros | None = None) -> SlotCache:
        """Storage for ``rows`` rows of ``capacity`` slots, in the model's own precision; ``zeros`` as in SlotCache.

        Raises ValueError for a capacity that exceeds the model's sliding window.
        """
        self._refuse_beyond_window(capacity)
        return SlotCache(
            num_layers=self.config.num_layers,
            rows=rows,
            capacity=capacity,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self.dtype,
            device=self.device,
            zeros=zeros,
        )

    def forward(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        resume: Resume | None = None,
        last_states: int | None = None,
        without: SkippedSublayers | None = None,
    ) -> Output:
        """Score nodes ``start`` on of ``tree`` through the layers of ``cache`` (see models/base).

        What ``without`` names is not run: it reads no weights and writes nothing to the cache.
        """
        attend = self._attention(tree, cache, start)
        if resume is None:
            x, done = self.embed_inputs(tree.tokens[:, start:], attend.positions), 0
        else:
            x, done = self._resumed(tree, cache, start, resume, without), resume.layer
            assert min(taps, default=done) >= done, "taps must not be below the resumed layer"
        hidden = self._run(x, attend, cache.layers, taps, done, without=without)
        return Output(self._head(hidden[-1], logits_for, tree.valid[:, start:]), {tap: hidden[tap] for tap in taps})

    def _attention(self, tree: Tree, cache: View, start: int) -> CacheAttention:
        return self.attention(
            tree, cache, start, max_positions=self.max_positions, group=self.group, bias=self.relative
        )

    def without(self, skipped: SkippedSublayers) -> "SkippingDecoder":
        """See models/sublayers.LayerSkipping."""
        return SkippingDecoder(self, skipped)

    def causal(
        self,
        tokens: Tensor,
        *,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        segment: Tensor | None = None,
        skipped: Tensor | None = None,
        source: Source | None = None,
    ) -> Output:
        """Whole sequences [B, T] without a cache, differentiable: logits [B, T, V]; ``segment`` and ``source`` as in
        CausalAttention.

        ``skipped`` bool [B, L]: layers that leave a row's stream as it is. Raises ValueError for a T that exceeds the
        model's sliding window.
        """
        attend = self._causally(tokens, segment, source)
        return self._causal(self.embed_inputs(tokens, attend.positions), attend, taps, logits_for, skipped)

    def causal_from_embeds(
        self,
        hidden: Tensor,
        *,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        segment: Tensor | None = None,
    ) -> Output:
        """The same from input embeddings [B, T, H]."""
        return self._causal(hidden, self._causally(hidden, segment), taps, logits_for)

    def run_blocks(self, hidden: Tensor, attend: Attend) -> Tensor:
        """The residual stream [B, n, H] after all layers, from input embeddings [B, n, W] and with the given attention.

        W is H, unless the first block reads another width (models/native/pair_block).
        """
        return self._run(hidden, attend, range(self.num_layers), ())[-1]

    def _causally(self, whole: Tensor, segment: Tensor | None, source: Source | None = None) -> CausalAttention:
        rows, length = whole.shape[:2]
        self._refuse_beyond_window(length)
        return CausalAttention(rows, length, whole.device, segment, bias=self.relative, source=source)

    def _causal(
        self,
        x: Tensor,
        attend: CausalAttention,
        taps: Sequence[int],
        logits_for: LogitsFor,
        skipped: Tensor | None = None,
    ) -> Output:
        found = self._run(x, attend, range(self.num_layers), taps, skipped=skipped)
        return Output(self._head(found[-1], logits_for, None), {tap: found[tap] for tap in taps})

    def embed_inputs(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The input embeddings [B, n, H] of ``tokens`` and ``positions`` [B, n]."""
        x = self.embed(tokens.flatten())
        if self.embedding_factor != 1.0:
            x = x * self.embedding_factor
        if self.position is not None:
            x = x + self.position(positions.flatten())
        return x.view(*tokens.shape, -1)

    def _resumed(self, tree: Tree, cache: View, start: int, resume: Resume, without: SkippedSublayers | None) -> Tensor:
        """The residual stream [B, n, H] after the resumed layers, which nodes that are not ready run first.

        The cost of a call is in reading the weights, not in the number of nodes: all nodes from the first one that may
        be unready are run, and the given states of ready ones are used.
        """
        first = resume.first
        if first == tree.num_nodes - start:
            return resume.hidden
        attend = self._attention(tree, cache, start + first)
        x = self.embed_inputs(tree.tokens[:, start + first :], attend.positions)
        run_now = self._run(x, attend, cache.layers[: resume.layer], (), without=without)[-1]
        rest = torch.where(resume.ready[:, first:, None], resume.hidden[:, first:], run_now)
        return torch.cat((resume.hidden[:, :first], rest), dim=1) if first else rest

    def _run(
        self,
        x: Tensor,
        attend: Attend,
        layers: Sequence[int],
        taps: Sequence[int],
        done: int = 0,
        skipped: Tensor | None = None,
        without: SkippedSublayers | None = None,
    ) -> dict[int, Tensor]:
        """Residual stream at each tap, and under -1 at the end, from ``x`` [B, n, H] after ``done`` of the layers.

        ``skipped`` are layers that rows leave out, which run for all; ``without`` is what no row runs.
        """
        dropout = self.dropout if self.training else 0.0
        shape = (*x.shape[:2], -1)
        table = None if self.rotary is None else self.rotary(attend.positions, x.dtype)
        hidden = {done: x} if done in taps else {}
        x = x.flatten(0, 1)  # inside it is [B * n, H]: a matrix product of two axes costs less to call than of three
        for slot in range(done, len(layers)):
            parts = Part.BOTH if without is None else parts_of(without, layers[slot])
            before, x = x, self.blocks[layers[slot]](x, slot, attend, table, dropout, parts)
            if skipped is not None:
                x = torch.where(skipped[:, slot, None, None], before.view(shape), x.view(shape)).flatten(0, 1)
            if slot + 1 in taps:
                hidden[slot + 1] = x.view(shape)
        return {**hidden, -1: x.view(shape)}

    def _head(self, x: Tensor, logits_for: LogitsFor, valid: Tensor | None) -> Tensor | None:
        if logits_for is LogitsFor.NONE:
            return None
        if logits_for is LogitsFor.LAST and valid is not None:
            last = (valid.sum(-1) - 1).clamp(min=0)
            x = x.gather(1, last[:, None, None].expand(-1, 1, x.shape[-1]))
        return self.compute_logits(x)

    def compute_logits(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits [B, n, V] of the residual stream after the last layer [B, n, H]; [B, n, D] of ``ids`` [D] alone."""
        normed, bias = self.norm(x.flatten(0, 1)), self.logits_bias
        if ids is not None:
            logits = F.linear(normed, (self.embed if self.head is None else self.head).weight[ids])
            bias = None if bias is None else bias[ids]
        else:
            logits = F.linear(normed, self.embed.weight) if self.head is None else self.head(normed)
        logits = logits.unflatten(0, x.shape[:2])
        logits = logits if self.logits_divisor == 1.0 else logits / self.logits_divisor
        logits = logits if bias is None else logits + bias
        if self.num_generated is None or ids is not None:
            return logits
        return F.pad(logits[..., : self.num_generated], (0, self.vocab_size - self.num_generated), value=-torch.inf)

    def _refuse_beyond_window(self, length: int) -> None:
        window = self.config.window
        if window is not None and length > window:
            raise ValueError(
                f"a sequence of {length} tokens, drafts included, exceeds the sliding window of {window} tokens of "
                "this model, which the native decoder does not apply: lower max_tokens, max_length or num_draft_tokens"
            )


@final
class SkippingDecoder(WrappedLM[DecoderLM]):
    """``lm`` on the same weights without ``skipped``. Raises ValueError for layers that it does not have."""

    def __init__(self, lm: DecoderLM, skipped: SkippedSublayers) -> None:
        super().__init__(lm)
        skipped.check(lm.num_layers)
        self.skipped = skipped

    def __call__(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        resume: Resume | None = None,
        last_states: int | None = None,
    ) -> Output:
        """As the LM."""
        return self.lm(tree, cache, start=start, taps=taps, logits_for=logits_for, resume=resume, without=self.skipped)
