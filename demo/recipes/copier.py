"""The weights that a target which edits begins with: two layers that copy, by construction.

Copying by attention (an induction circuit, 2209.11895) appears in training only after more tokens than this recipe can
afford, so it is put there. The residual stream has five parts: the token's embedding, a constant, and the codes of the
tokens one, two and three back with a blur of those before. Layer 0 fills the codes: its heads look back by a fixed
distance, which rotary embedding of a constant gives. Layer 1 looks for places whose predecessors are the newest tokens,
and adds the embedding of what stands there. Everything else is random and small; what an instruction asks for is
learned.

H hidden size, E head size.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.models.loading import build, configure
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.fused_weights import split_parts
from paceline.train.init_weights import random_model

CODE = 24  # channels of a token's code
FAST = 9  # rotary pairs that tell neighbouring positions apart
SLOW = 11  # the first of those that turn little over a whole prompt
STD, CONSTANT = 0.5, 1.5  # of embeddings, and of the channel that is the same for every token
SHARED = 0.7  # share of an embedding that a word has with and without a space before it
FINAL_NORM = 0.3  # keeps the first logits from being too sure
BLUR_CENTRE = 4


def copier(raw: Mapping[str, object], tokens: Sequence[str], seed: int) -> DecoderLM:
    """A model of the Llama layout ``raw`` that copies; ``tokens`` by id, as byte-level BPE writes them.

    Raises ValueError for a layout without room for it.
    """
    config = configure(dict(raw), "a copier")
    width, size, heads = config.hidden_size, config.head_dim, config.num_heads
    if config.num_layers < 2 or heads != 4 or config.num_kv_heads != 4 or width != heads * size or size < 2 * CODE:
        raise ValueError(f"{raw}: a copier needs 2 layers, and 4 heads with keys of their own of at least {2 * CODE}")
    generator = torch.Generator().manual_seed(seed)
    parts = split_parts(config, random_model(raw, seed).state_dict())
    state = {name: part.detach().clone() for name, part in parts.items()}
    embedding = width - 4 * CODE - 1
    code = _orthonormal(embedding, CODE, generator).t()
    state["embed.weight"][:] = 0
    state["embed.weight"][:, :embedding] = _embeddings(tokens, embedding, generator)
    state["embed.weight"][:, embedding] = CONSTANT
    theta = float(str(raw["rope_theta"]))
    turns = theta ** (-torch.arange(size // 2) * 2 / size)
    first = math.sqrt((embedding * STD**2 + CONSTANT**2) / width)
    for head in range(4):
        blurred = head == 3
        distance, strength = (BLUR_CENTRE, 11.0) if blurred else (head + 1, 80.0)
        _look_back(state, head, size, embedding, turns, distance, math.sqrt(strength) * first / CONSTANT, blurred)
        rows, block = slice(head * size, head * size + CODE), _block(embedding, head)
        state["blocks.0.attention.value.weight"][rows, :embedding] += code
        state["blocks.0.attention.output.weight"][block, rows] += torch.eye(CODE) * first * (2 if blurred else 1)
    second = math.sqrt(((embedding + 3 * CODE) * STD**2 + CONSTANT**2) / width)
    slow = [*range(SLOW, size // 2), *range(size // 2 + SLOW, size)]
    for pair, (weights, scale) in enumerate((((1.2, 1.1, 1.1, 0.0), 2.0), ((1.2, 0.8, 0.5, 0.7), 2.0))):
        hashes = [_orthonormal(len(slow), CODE, generator) * weight for weight in weights]
        for half in range(2):
            head = 2 * pair + half
            query, key = torch.zeros(size, width), torch.zeros(size, width)
            query[slow, :embedding] = hashes[0] @ code
            for back in range(3):
                key[slow, _block(embedding, back)] = hashes[back]
                if back:
                    query[slow, _block(embedding, back - 1)] = hashes[back]
            query[slow, _block(embedding, 3)] = hashes[3]
            key[slow, _block(embedding, 3)] = hashes[3]
            _add(state, "1", head, size, query * scale, key * scale)
            _carry_half(state, "1", head, half, size, embedding, 3.0 * second)
    # Where the next token is known, layer 2 finds what the prompt says two tokens, and one, behind it.
    for head in range(4) if config.num_layers > 2 else ():
        query, key = torch.zeros(size, width), torch.zeros(size, width)
        hashed = _orthonormal(len(slow), CODE, generator) * 1.7
        query[slow, :embedding] = hashed @ code
        key[slow, _block(embedding, 1 - head // 2)] = hashed
        _add(state, "2", head, size, query, key)
        _carry_half(state, "2", head, head % 2, size, embedding, 0.05)
    state["norm.weight"][:] = FINAL_NORM
    return build(config, state).requires_grad_(True)


def _embeddings(tokens: Sequence[str], size: int, generator: torch.Generator) -> Tensor:
    """Random [V, size]; a word with and without a space before it are alike."""
    stems = {token.removeprefix("Ġ"): at for at, token in enumerate(tokens)}
    shared = torch.randn((len(tokens), size), generator=generator)
    own = torch.randn((len(tokens), size), generator=generator)
    rows = torch.tensor([stems[token.removeprefix("Ġ")] for token in tokens])
    return STD * (shared[rows] * SHARED + own * math.sqrt(1 - SHARED**2))


def _block(embedding: int, index: int) -> slice:
    start = embedding + 1 + index * CODE
    return slice(start, start + CODE)


def _look_back(
    state: dict[str, Tensor],
    head: int,
    size: int,
    constant: int,
    turns: Tensor,
    distance: int,
    strength: float,
    blurred: bool,
) -> None:
    """Queries and keys of a head of layer 0 whose scores are highest ``distance`` tokens back."""
    rows = head * size + torch.arange(2 if blurred else 0, FAST)
    pairs = rows - head * size
    state["blocks.0.attention.query.weight"][rows, constant] += strength
    angle = turns[pairs] * distance
    state["blocks.0.attention.key.weight"][rows, constant] += strength * angle.cos()
    state["blocks.0.attention.key.weight"][rows + size // 2, constant] += strength * angle.sin()


def _add(state: dict[str, Tensor], layer: str, head: int, size: int, query: Tensor, key: Tensor) -> None:
    rows = slice(head * size, (head + 1) * size)
    state[f"blocks.{layer}.attention.query.weight"][rows] += query
    state[f"blocks.{layer}.attention.key.weight"][rows] += key


def _carry_half(
    state: dict[str, Tensor], layer: str, head: int, half: int, size: int, embedding: int, weight: float
) -> None:
    """Half of the embedding channels through the values of a head, and back to where they were."""
    channels = torch.arange(half * size, min((half + 1) * size, embedding))
    rows = head * size + channels - half * size
    state[f"blocks.{layer}.attention.value.weight"][rows, channels] += 1.0
    state[f"blocks.{layer}.attention.output.weight"][channels, rows] += weight


def _orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn((rows, columns), generator=generator)).Q
