"""The weights that a target which corrects begins with: an encoder-decoder that copies its source, by construction.

As of the target that edits (copier.py), copying by attention would take more training than this recipe can afford. The
residual streams of encoder and decoder have five parts: a token's embedding, the codes of the tokens one, two and three
back, a place, and two channels that are constant and mark the token that begins a text. Heads with relative positions
fetch the codes, and the place: two of them weigh the token that begins against their own by a wave of its distance.
Cross-attention of the decoder's last layer looks for the place that comes next and whose predecessors are the output's
newest tokens, and adds the embedding of what stands there. Everything else is random and small; what a mistake is, is
learned.

H hidden size, E head size.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.models.loading import build, configure
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.models.native.fused_weights import split_parts
from paceline.train.init_weights import random_model

CODE, BACK = 24, 3  # channels of a token's code, and how many tokens back there are codes of
AFTER, WAVES = 3, (4, 5)  # the head that looks at the token after, in the encoder alone, and those of the place
HEADS, PARTS = 6, 3  # heads, and how many of them carry an embedding together
NEAR = 12.0  # score of the token that a head looks back at
PERIOD = 160  # tokens, after which places are alike
FOUND = 30.0  # score of the token that begins a text, and of a token itself, in the heads of the place
CONSTANT, FLAG = 1.5, 3.0  # of every token, and of the one that begins
WEIGHTS = ((1.0, 0.9, 0.8), (1.0, 0.5, 0.3))  # of the three codes, in the heads of each group
MATCH, PLACE, CARRY = 0.7, 2.5, 4.0  # scales of queries and keys that match, and of what is copied
REST = 0.2  # of all other weights, which are random, so that they do not disturb


def aligner(raw: Mapping[str, object], seed: int, *, begin: int) -> EncoderDecoderLM:
    """A model of the T5 layout ``raw`` that copies its source, where both begin with the token ``begin``.

    Raises ValueError for a layout without room for it.
    """
    config = configure(dict(raw), "an aligner")
    width, size, layers, relative = config.hidden_size, config.head_dim, config.num_layers, config.relative
    embedding = width - BACK * CODE - 4
    encoder = config.encoder
    fits = relative is not None and relative.num_buckets >= 4 * PERIOD and config.num_heads == HEADS
    fits = fits and encoder is not None and encoder.blocks.num_layers == layers == 2
    if not fits or embedding > PARTS * size or size < CODE + 2:
        raise ValueError(
            f"{raw}: an aligner needs 2 layers on both sides, {4 * PERIOD} buckets of relative positions, and {HEADS} "
            f"heads of at least {max(CODE + 2, -(-embedding // PARTS))}"
        )
    generator = torch.Generator().manual_seed(seed)
    parts = split_parts(config, random_model(raw, seed).state_dict())
    state = {name: part.detach() * (1.0 if part.dim() == 1 else REST) for name, part in parts.items()}
    drawn = torch.randn((config.vocab_size, embedding), generator=generator)
    place, constant, flag = slice(width - 4, width - 2), width - 2, width - 1
    # Of one length, so that norms scale all tokens alike.
    state["embed.weight"][:] = 0
    state["embed.weight"][:, :embedding] = drawn / drawn.norm(dim=1, keepdim=True) * math.sqrt(embedding)
    state["embed.weight"][:, constant] = CONSTANT
    state["embed.weight"][begin, flag] = FLAG
    code = _orthonormal(embedding, CODE, generator).t()
    for side in ("encoder.", ""):
        bias = state[f"{side}relative.weight"]
        bias[:] = 0
        bias[torch.arange(1, BACK + 1), torch.arange(BACK)] = NEAR
        bias[0] = NEAR / 2  # itself, where nothing is so far back
        if side:
            bias[len(bias) // 2 + 1, AFTER] = NEAR
        # The decoder's newest token stands one before what is looked for.
        _see_place(state, f"{side}blocks.0.attention", bias, size, ahead=0 if side else 1)
        for back in range(BACK):  # the encoder fetches codes last, when its first layer has seen the mistakes
            rows, layer = slice(back * size, back * size + CODE), f"{side}blocks.{1 if side else 0}.attention"
            state[f"{layer}.value.weight"][rows, :embedding] += code
            state[f"{layer}.output.weight"][_block(embedding, back), rows] += torch.eye(CODE)
    for group, weights in enumerate(WEIGHTS):
        hashes = [_orthonormal(size - 2, CODE, generator) * weight * MATCH for weight in weights]
        query, key = torch.zeros(size, width), torch.zeros(size, width)
        for back, hashed in enumerate(hashes):
            key[:-2, _block(embedding, back)] = hashed
            if back:
                query[:-2, _block(embedding, back - 1)] = hashed
            else:
                query[:-2, :embedding] = hashed @ code
        for both in (query, key):  # waves about zero
            both[-2:, place] = 2 * PLACE * torch.eye(2)
            both[-2:, constant] = -PLACE
        for part in range(PARTS):
            head = PARTS * group + part
            rows = slice(head * size, (head + 1) * size)
            state["blocks.1.cross.query.weight"][rows] += query
            state["blocks.1.cross.key.weight"][rows] += key
            channels = torch.arange(part * size, min((part + 1) * size, embedding))
            carried = head * size + channels - part * size
            state["blocks.1.cross.value.weight"][carried, channels] += 1.0
            state["blocks.1.cross.output.weight"][channels, carried] += CARRY / len(WEIGHTS)
    model = build(config, state).requires_grad_(True)
    assert isinstance(model, EncoderDecoderLM)
    return model


def _see_place(state: dict[str, Tensor], layer: str, bias: Tensor, size: int, *, ahead: int) -> None:
    """Heads that write a cosine and a sine of the distance of the token that begins, ``ahead`` of it, from 0 to
    CONSTANT.
    """
    width = state[f"{layer}.output.weight"].shape[0]
    plain = width - BACK * CODE - 4 + CONSTANT**2  # the squared length of a token
    usual, first = math.sqrt(width / plain), math.sqrt(width / (plain + FLAG**2))  # what norms multiply with
    angle = 2 * math.pi / PERIOD * (torch.arange(400) + ahead)
    for head, wave, channel in zip(WAVES, (angle.cos(), angle.sin()), (width - 4, width - 3), strict=True):
        bias[: len(angle), head] = torch.logit((1 + wave) / 2, eps=0.02)
        bias[0, head] = FOUND
        row = head * size
        state[f"{layer}.query.weight"][row, width - 2] += math.sqrt(FOUND) / (CONSTANT * usual)
        state[f"{layer}.key.weight"][row, width - 1] += math.sqrt(FOUND) / (FLAG * first)
        state[f"{layer}.value.weight"][row, width - 1] += CONSTANT / (FLAG * first)
        state[f"{layer}.output.weight"][channel, row] += 1.0


def _block(embedding: int, back: int) -> slice:
    start = embedding + back * CODE
    return slice(start, start + CODE)


def _orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn((rows, columns), generator=generator)).Q
