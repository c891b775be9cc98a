"""Small random text-to-semantic models, and a naive forward of them that shares no code with Paceline: no cache, no
batch, one whole forward for each source.
"""

from functools import cache
from types import SimpleNamespace

import torch

from paceline.core.context import Context
from paceline.models import loading
from paceline.train.init_weights import random_model

TEXT_IDS, SEMANTIC_IDS, STATES, LONGEST = 11, 13, 20, 96
END, START = SEMANTIC_IDS, SEMANTIC_IDS + 1
EXIT = 2  # the layer where heads leave
RAW = dict(
    model_type="text_to_semantic",
    is_encoder_decoder=True,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    encoder_layers=2,
    decoder_layers=4,
    num_text_ids=TEXT_IDS,
    num_semantic_ids=SEMANTIC_IDS,
    max_source_positions=STATES,
    max_target_positions=LONGEST,
    eos_token_id=END,
    decoder_start_token_id=START,
)


def config(num_semantic_ids=SEMANTIC_IDS, **fields):
    """A config.json, its two ids behind the semantic ones."""
    ids = dict(num_semantic_ids=num_semantic_ids, eos_token_id=num_semantic_ids)
    return {**RAW, **ids, "decoder_start_token_id": num_semantic_ids + 1, **fields}


@cache
@torch.no_grad()
def model(seed=9, scale=0.3, late=0.15, dtype=torch.float64, **fields):
    """A model whose every tensor is drawn: norms around 1. Its last layers add little, so that exits are right."""
    lm = random_model(config(**fields), seed).to(dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in lm.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(1 + 0.1 * drawn if parameter.dim() == 1 else scale * drawn)
    for block in lm.blocks[EXIT:]:
        for part in (block.attention.output, block.cross.output, block.ffn.down):
            part.weight.mul_(late)
    return lm


def context(source):
    """What a request gives for the text ids ``source``."""
    return Context({"input_ids": torch.tensor(source, dtype=torch.int64)})


class Naive:
    """The logits [1, T, V] of ``lm`` after ``source``; guided by ``scale`` away from those after ``negative``.

    Guidance is of the logits themselves: null + scale * (cond - null).
    """

    def __init__(self, lm, source, *, scale=1.0, negative=()):
        self.weights = loading.split_parts(lm.config, lm.state_dict())
        self.shape, self.scale = lm.config, scale
        self.states = [self._encode(one) for one in (source, negative)]

    def __call__(self, ids):
        tokens = ids[0].tolist()
        cond = self._decode(tokens, self.states[0])
        logits = cond
        if self.scale != 1:
            null = self._decode(tokens, self.states[1])
            logits = null + self.scale * (cond - null)
        logits = torch.cat((logits[:, :-1], torch.full_like(logits[:, -1:], -torch.inf)), dim=1)  # no start
        return SimpleNamespace(logits=logits[None])

    def _encode(self, source):
        x = self.weights["encoder.embed.weight"][list(source)]
        for layer in range(self.shape.encoder.blocks.num_layers):
            name = f"encoder.blocks.{layer}"
            x = x + self._attend(f"{name}.attention", self._norm(f"{name}.attention_norm", x), causal=False)
            x = x + self._feed_forward(name, x)
        return self._norm("encoder.norm", x)

    def _decode(self, tokens, states):
        x = self.weights["embed.weight"][tokens]
        for layer in range(self.shape.num_layers):
            name = f"blocks.{layer}"
            x = x + self._attend(f"{name}.attention", self._norm(f"{name}.attention_norm", x), causal=True)
            x = x + self._cross(f"{name}.cross", self._norm(f"{name}.cross_norm", x), states)
            x = x + self._feed_forward(name, x)
        return self._norm("norm", x) @ self.weights["embed.weight"].T

    def _norm(self, name, x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.weights[f"{name}.weight"]

    def _feed_forward(self, name, x):
        x = self._norm(f"{name}.ffn_norm", x)
        gate, up, down = (self.weights[f"{name}.ffn.{part}.weight"] for part in ("gate", "up", "down"))
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _heads(self, name, x):
        return (x @ self.weights[f"{name}.weight"].T).unflatten(-1, (-1, self.shape.head_dim))  # [T, heads, E]

    def _attend(self, name, x, *, causal):
        query, key, value = (self._heads(f"{name}.{part}", x) for part in ("query", "key", "value"))
        places = torch.arange(len(x))
        mask = places <= places[:, None] if causal else torch.ones(len(x), len(x), dtype=torch.bool)
        return self._weigh(name, _rotated(query), _rotated(key), value, mask)

    def _cross(self, name, x, states):
        null = self.weights[f"{name}.null"].unflatten(-1, (1, -1, self.shape.head_dim))
        key, value = (
            torch.cat((own, self._heads(f"{name}.{part}", states)))
            for own, part in zip(null, ("key", "value"), strict=True)
        )
        return self._weigh(name, self._heads(f"{name}.query", x), key, value, torch.ones(len(x), len(key)) > 0)

    def _weigh(self, name, query, key, value, mask):
        out = []
        for head in range(query.shape[1]):
            own = head * key.shape[1] // query.shape[1]  # heads of a group are neighbours
            scores = query[:, head] @ key[:, own].T / self.shape.head_dim**0.5
            out.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value[:, own])
        return torch.cat(out, dim=-1) @ self.weights[f"{name}.output.weight"].T


def _rotated(x, base=10_000.0):
    """RoPE of [T, heads, E] at positions 0 to T - 1: pairs of an element of each half."""
    half = x.shape[-1] // 2
    angle = torch.arange(len(x))[:, None] * (1.0 / base ** (torch.arange(half) / half))  # float32, as models have it
    first, second = x[..., :half], x[..., half:]
    cos, sin = (function(angle)[:, None].to(x.dtype) for function in (torch.cos, torch.sin))
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
