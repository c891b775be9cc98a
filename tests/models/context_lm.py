"""An LM that reads a context: a tiny Llama whose attention also attends to the frames that a request gives.

B rows, n nodes, L layers, F frames, S size of a frame, H key-value heads, E head size.
"""

import torch
from torch.nn import functional as F
from transformers import AttentionInterface

from paceline.core.context import Context, ContextInput
from paceline.models.native.attention import TreeAttention
from paceline.models.native.decoder import DecoderLM
from tests import tiny

SIZE, MAX_FRAMES = 6, 5
INPUTS = {"frames": ContextInput(min_shape=(1, SIZE), max_shape=(MAX_FRAMES, SIZE))}


def context(seed, num_frames=3):
    """Random frames."""
    generator = torch.Generator().manual_seed(seed)
    return Context({"frames": 2 * torch.randn(num_frames, SIZE, generator=generator, dtype=torch.float64)})


def projections(config, seed):
    """Weights [L, S, H * E] that make keys and values of frames."""
    shape = (config.num_hidden_layers, SIZE, config.num_key_value_heads * config.head_dim)
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))


class FrameAttention:
    """Tree attention, and added to it attention to the frames of each row."""

    def __init__(self, tree, cache, start, *, max_positions, group, bias=None):
        self.tree = TreeAttention(tree, cache, start, max_positions=max_positions, group=group)
        self.positions, self.layers, self.group = self.tree.positions, cache.layers, group
        self.keys, self.values = cache.row_state("keys"), cache.row_state("values")  # [B, L, F, H, E]
        self.masked = torch.arange(MAX_FRAMES) >= cache.row_state("count")[:, None]  # [B, F]

    def __call__(self, layer, query, key, value):
        own = self.tree(layer, query, key, value)
        keys, values = (state[:, self.layers[layer]] for state in (self.keys, self.values))
        heads = query.unflatten(2, (-1, self.group))
        scores = torch.einsum("bnhge,bfhe->bnhgf", heads, keys) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(self.masked[:, None, None, None], -torch.inf).softmax(-1).nan_to_num()
        return own + torch.einsum("bnhgf,bfhe->bnhge", weights, values).flatten(2, 3)


class ContextLM(DecoderLM):
    """``lm`` on its own weights, over the frames of each row."""

    context_inputs = INPUTS  # type: ignore

    def __init__(self, lm, weights):
        torch.nn.Module.__init__(self)
        self.__dict__.update(lm.__dict__)
        self.frame_keys, self.frame_values = weights
        self.attention = FrameAttention
        self.num_encoded = 0  # contexts

    def new_cache(self, rows, capacity, *, zeros=None):
        cache = super().new_cache(rows, capacity, zeros=zeros)
        heads, size = self.config.num_kv_heads, self.config.head_dim
        for name in ("keys", "values"):
            cache.row_state[name] = torch.zeros(rows, self.num_layers, MAX_FRAMES, heads, size, dtype=self.dtype)
        cache.row_state["count"] = torch.zeros(rows, dtype=torch.int64)
        return cache

    def admit(self, cache, admission):
        view = super().admit(cache, admission)
        for row, given in admission.new_contexts:
            frames = given.inputs["frames"]
            for name, weights in (("keys", self.frame_keys), ("values", self.frame_values)):
                state = (frames @ weights).unflatten(2, (-1, self.config.head_dim))  # [L, F, H, E]
                cache.storage.row_state[name][row] = F.pad(state, (0, 0, 0, 0, 0, MAX_FRAMES - len(frames)))
            cache.storage.row_state["count"][row] = len(frames)
            self.num_encoded += 1
        return view


class NaiveModel:
    """The transformers model under one context, whole sequences at a time: for tests/reference and tests/harness."""

    def __init__(self, model, weights, given):
        self.model, self.weights, self.frames = model, weights, given.inputs["frames"]

    def __call__(self, ids):
        AttentionInterface.register("frames", self._attend)
        self.model.config._attn_implementation = "frames"
        try:
            return self.model(ids, use_cache=False)
        finally:
            self.model.config._attn_implementation = "sdpa"

    def _attend(self, module, query, key, value, attention_mask, **options):
        """[1, heads, T, E] each; the output is [1, T, heads, E]."""
        scale, groups = query.shape[-1] ** -0.5, module.num_key_value_groups
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        later = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
        total = ((query @ key.mT) * scale).masked_fill(later, -torch.inf).softmax(-1) @ value
        key, value = (
            (self.frames @ weights[module.layer_idx]).view(len(self.frames), -1, query.shape[-1]).transpose(0, 1)
            for weights in self.weights
        )
        key, value = (states.repeat_interleave(groups, dim=0) for states in (key, value))
        total = total + ((query @ key.mT) * scale).softmax(-1) @ value
        return total.transpose(1, 2), None


def pair(seed=1, **overrides):
    """(what makes the naive model under a context, ours)."""
    model = tiny.llama(seed, **overrides)
    weights = projections(model.config, seed)
    known = {}

    def naive(given):
        return known.setdefault(id(given), NaiveModel(model, weights, given))

    return naive, ContextLM(tiny.native(model), weights)
