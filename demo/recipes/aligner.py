"""The weights that a target which corrects begins with: an encoder-decoder that copies its source, by construction.

As of the target that edits (copier.py), copying by attention would take more training than this recipe can afford. The
residual streams of encoder and decoder have four parts: a token's embedding, and the codes of the tokens one, two and
three back, which heads with relative positions fetch. Cross-attention of the decoder's last layer looks for the place
whose three predecessors are the output's newest tokens, and adds the embedding of what stands there. Everything else is
random and small; what a mistake is, and how the place is found again behind it, is learned.

H hidden size, E head size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.models.loading import build, configure
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.models.native.fused_weights import split_parts
from paceline.train.init_weights import random_model

CODE, BACK = 24, 3  # channels of a token's code, and how many tokens back there are codes of
NEAR = 12.0  # score of the token that a head looks back at
AFTER = 3  # the head that looks at the token after, in the encoder alone
WEIGHTS = ((1.0, 0.9, 0.8), (1.0, 0.5, 0.3))  # of the three codes, in each pair of heads that match
MATCH, CARRY = 0.7, 4.0  # scale of queries and keys that match, and of what is copied
REST = 0.2  # of all other weights, which are random, so that they do not disturb


def aligner(raw: Mapping[str, object], seed: int) -> EncoderDecoderLM:
    """A model of the T5 layout ``raw`` that copies its source. Raises ValueError for a layout without room for it."""
    config = configure(dict(raw), "an aligner")
    width, size, heads, layers = config.hidden_size, config.head_dim, config.num_heads, config.num_layers
    embedding = width - BACK * CODE
    encoder = config.encoder
    fits = config.relative is not None and encoder is not None and encoder.blocks.num_layers == layers == 2
    if not fits or heads != 4 or embedding > 2 * size or size < CODE:
        raise ValueError(
            f"{raw}: an aligner needs 2 layers on both sides, relative positions, and 4 heads of at least "
            f"{max(CODE, -(-embedding // 2))}"
        )
    generator = torch.Generator().manual_seed(seed)
    parts = split_parts(config, random_model(raw, seed).state_dict())
    state = {name: part.detach() * (1.0 if part.dim() == 1 else REST) for name, part in parts.items()}
    state["embed.weight"][:, :embedding] += torch.randn((config.vocab_size, embedding), generator=generator)
    code = _orthonormal(embedding, CODE, generator).t()
    for side in ("encoder.", ""):
        bias = state[f"{side}relative.weight"]
        bias[torch.arange(1, BACK + 1), torch.arange(BACK)] += NEAR
        bias[0] += NEAR / 2  # itself, where nothing is so far back
        if side:
            bias[len(bias) // 2 + 1, AFTER] += NEAR
        for back in range(BACK):  # the encoder fetches codes last, when its first layer has seen the mistakes
            rows, layer = slice(back * size, back * size + CODE), f"{side}blocks.{1 if side else 0}.attention"
            state[f"{layer}.value.weight"][rows, :embedding] += code
            state[f"{layer}.output.weight"][_block(embedding, back), rows] += torch.eye(CODE)
    for pair, weights in enumerate(WEIGHTS):
        hashes = [_orthonormal(size, CODE, generator) * weight for weight in weights]
        query, key = torch.zeros(size, width), torch.zeros(size, width)
        for back, hashed in enumerate(hashes):
            key[:, _block(embedding, back)] = hashed
            if back:
                query[:, _block(embedding, back - 1)] = hashed
            else:
                query[:, :embedding] = hashed @ code
        for half in range(2):
            head = 2 * pair + half
            rows = slice(head * size, (head + 1) * size)
            state["blocks.1.cross.query.weight"][rows] += MATCH * query
            state["blocks.1.cross.key.weight"][rows] += MATCH * key
            _carry_half(state, head, half, size, embedding)
    model = build(config, state).requires_grad_(True)
    assert isinstance(model, EncoderDecoderLM)
    return model


def _carry_half(state: dict[str, Tensor], head: int, half: int, size: int, embedding: int) -> None:
    """Half of the embedding channels through the values of a head, and back to where they were."""
    channels = torch.arange(half * size, min((half + 1) * size, embedding))
    rows = head * size + channels - half * size
    state["blocks.1.cross.value.weight"][rows, channels] += 1.0
    state["blocks.1.cross.output.weight"][channels, rows] += CARRY / len(WEIGHTS)


def _block(embedding: int, back: int) -> slice:
    start = embedding + back * CODE
    return slice(start, start + CODE)


def _orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Columns of length one."""
    return torch.linalg.qr(torch.randn((rows, columns), generator=generator)).Q
