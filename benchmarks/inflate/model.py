"""A target of any size from a trained one, its function kept: costs of a large model, acceptance of a real pair.

Trained pairs that are small enough to carry about are too small to be bound by memory. Inflating the target makes it
as wide as wanted and leaves what it computes as it was, so that outputs and acceptance stay those of the trained pair
while the times become those of a model of the new size. Knows nothing of how it is timed.

H hidden size, W the new one, all products below in float64:

- *Residual stream.* A random matrix P [W, H] with orthonormal columns carries every vector x of it to P x. What writes
  to the stream is multiplied by P, what reads from it by P's transpose, and no channel is zero. Norms commute with that
  only where their weights are one, so these are folded into the matrices that follow. The mean of W squares is H / W of
  the old one, hence ``eps * H / W`` for eps, and ``sqrt(H / W)`` in the matrices that follow.
- *Feed-forward channels and heads* are repeated. The copies of a channel (of a query head, of a key-value head with
  its query heads) share its weights; their columns in the matrix behind are c-th parts of the old ones, plus random
  parts that sum to zero over the c copies. Every column is dense and different.
- *The head* can no longer be the embedding once the last norm's weights are folded into it: the result is never tied.

In exact arithmetic nothing changes. The logits differ by rounding alone: by less than 1e-5 of the largest in float32
and 1e-9 in float64. Rounding the new weights to bfloat16 rounds other numbers than rounding the old ones did, so
outputs in bfloat16 differ after some tokens and acceptance moves a little.

There are widths only. Layers that add nothing would keep the function too, but such layers could be skipped, or left
early, at no loss: drafters that do so would be measured as free. The vocabulary is widened first, where that is wanted,
in a way of its own (inflate/vocabulary); that holds for greedy decoding only.
"""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from benchmarks.inflate.widths import choose_widths, widened
from paceline.models.loading import build
from paceline.models.native.decoder import DecoderConfig, DecoderLM
from paceline.models.native.fused_weights import split_parts

Progress = Callable[[int, int], None]  # layers done, of how many


def inflate(
    lm: DecoderLM,
    *,
    hidden_size: int,
    ffn_size: int,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> DecoderLM:
    """``lm`` with these widths, the same function, untied; in its own precision, on its own device.

    ``num_heads`` None keeps the heads; ``num_kv_heads`` None keeps the number of query heads per key-value head. The
    size of a head stays. Raises ValueError for widths below the model's own, for heads that do not divide, and for a
    model that is not of the Llama layout.
    """
    config = widened(lm.config, hidden_size, ffn_size, num_heads, num_kv_heads)
    old = {name: part.double() for name, part in split_parts(lm.config, lm.state_dict()).items()}
    random = _Random(torch.Generator(device="cpu").manual_seed(seed), lm.device)
    carry = random.orthonormal(config.hidden_size, lm.config.hidden_size)
    read = carry.t() * math.sqrt(lm.config.hidden_size / config.hidden_size)
    heads = _Heads(lm.config, config, lm.device)
    channels = torch.arange(config.ffn_size, device=lm.device) % lm.config.ffn_size
    new = {"embed.weight": old["embed.weight"] @ carry.t()}
    for layer in range(config.num_layers):
        prefix = f"blocks.{layer}."
        part = {name.removeprefix(prefix): tensor for name, tensor in old.items() if name.startswith(prefix)}
        attention, ffn = part["attention_norm.weight"], part["ffn_norm.weight"]
        columns = random.split(part["attention.output.weight"].unflatten(1, (-1, config.head_dim)), heads.query)
        grown = {
            "attention.query.weight": heads.rows(part["attention.query.weight"], heads.query) * attention @ read,
            "attention.key.weight": heads.rows(part["attention.key.weight"], heads.key_value) * attention @ read,
            "attention.value.weight": heads.rows(part["attention.value.weight"], heads.key_value) * attention @ read,
            "attention.output.weight": carry @ columns.flatten(1),
            "ffn.gate.weight": (part["ffn.gate.weight"] * ffn @ read)[channels],
            "ffn.up.weight": (part["ffn.up.weight"] * ffn @ read)[channels],
            "ffn.down.weight": carry @ random.split(part["ffn.down.weight"], channels),
            "attention_norm.weight": torch.ones(config.hidden_size, device=lm.device),
            "ffn_norm.weight": torch.ones(config.hidden_size, device=lm.device),
        }
        new.update({prefix + name: tensor.to(lm.dtype) for name, tensor in grown.items()})
        if progress is not None:
            progress(layer + 1, config.num_layers)
    new["norm.weight"] = torch.ones(config.hidden_size, device=lm.device)
    head = old["embed.weight"] if lm.config.tied_head else old["head.weight"]
    new["head.weight"] = head * old["norm.weight"] @ read
    return build(config, {name: tensor.to(lm.dtype) for name, tensor in new.items()}, device=lm.device)


def inflate_to(lm: DecoderLM, *, num_parameters: int, seed: int = 0, progress: Progress | None = None) -> DecoderLM:
    """``lm`` with about ``num_parameters`` parameters, in the proportions it has.

    Widths are multiples of 64; the heads grow with the hidden size. Raises ValueError where no such widths come within
    5 % of the number, which is so below the model's own size, untied.
    """
    config = choose_widths(lm.config, num_parameters)
    return inflate(
        lm,
        hidden_size=config.hidden_size,
        ffn_size=config.ffn_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        seed=seed,
        progress=progress,
    )


def fields_of(shape: DecoderConfig) -> dict[str, object]:
    """What config.json of a Llama layout says of a ``shape`` that inflating may have changed."""
    return {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied_head,
        "vocab_size": shape.vocab_size,
    }


@final
class _Random:
    """Random matrices in float64 from one generator."""

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self._generator, self._device = generator, device

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64).to(self._device)

    def orthonormal(self, rows: int, columns: int) -> Tensor:
        """[rows, columns], its columns orthonormal, all directions equally likely."""
        return torch.linalg.qr(self._normal(rows, columns)).Q

    def split(self, columns: Tensor, source: Tensor) -> Tensor:
        """Columns [H, n, ...] as [H, m, ...]: m shares, each of column ``source`` [m], that add up to the n."""
        count = torch.zeros(columns.shape[1], dtype=columns.dtype, device=self._device)
        count = count.index_add(0, source, torch.ones_like(source, dtype=count.dtype))
        trailing = (1,) * (columns.dim() - 2)
        noise = self._normal(columns.shape[0], len(source), *columns.shape[2:]) * (columns.std() / 2)
        mean = torch.zeros_like(columns).index_add(1, source, noise) / count.view(-1, *trailing)
        return (columns[:, source] + noise - mean[:, source]) / count[source].view(-1, *trailing)


@final
class _Heads:
    """Which old head each new one is a copy of: groups repeat, and query heads repeat within their group."""

    def __init__(self, old: DecoderConfig, new: DecoderConfig, device: torch.device) -> None:
        group, wide = old.num_heads // old.num_kv_heads, new.num_heads // new.num_kv_heads
        self.key_value = torch.arange(new.num_kv_heads, device=device) % old.num_kv_heads
        within = torch.arange(wide, device=device) % group
        self.query = (self.key_value[:, None] * group + within).flatten()
        self._size = old.head_dim

    def rows(self, weight: Tensor, source: Tensor) -> Tensor:
        """Rows of a projection [heads * E, H], head by head."""
        return weight.unflatten(0, (-1, self._size))[source].flatten(0, 1)
