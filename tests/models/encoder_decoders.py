"""Small random encoder-decoders of every family, and transformers' plain decoding of them."""

from functools import cache

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    MT5Config,
    MT5ForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from paceline.core.context import Context
from paceline.models.from_transformers import from_transformers

VOCAB, START, STATES, FEATURES = 61, 3, 20, 6
T5 = dict(
    vocab_size=VOCAB,
    d_model=32,
    d_kv=8,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    n_positions=STATES,
)
BART = dict(
    vocab_size=VOCAB,
    d_model=32,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=40,
    max_position_embeddings=128,
)
SOUND = dict(max_source_positions=STATES, max_target_positions=128, num_mel_bins=FEATURES)
SPECIAL = dict(bos_token_id=1, pad_token_id=0, eos_token_id=2, decoder_start_token_id=START)
KINDS = {
    "t5": (T5ForConditionalGeneration, T5Config, T5 | {"feed_forward_proj": "relu"}),
    "t5, gated and untied": (
        T5ForConditionalGeneration,
        T5Config,
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": (MT5ForConditionalGeneration, MT5Config, T5),
    "bart": (BartForConditionalGeneration, BartConfig, BART),
    "mbart": (MBartForConditionalGeneration, MBartConfig, BART | {"scale_embedding": True}),
    "marian": (MarianMTModel, MarianConfig, BART | {"scale_embedding": True, "activation_function": "swish"}),
    "pegasus": (
        PegasusForConditionalGeneration,
        PegasusConfig,
        BART | {"scale_embedding": True, "activation_function": "relu"},
    ),
    "whisper": (
        WhisperForConditionalGeneration,
        WhisperConfig,
        {name: value for name, value in BART.items() if name != "max_position_embeddings"} | SOUND,
    ),
}

OTHER_SEEDS = {"marian": 6}  # added, where the first say one token whatever the source


def transformers_model(kind, seed=1, dtype=torch.float64, **overrides):
    """A random model of ``kind``; every tensor is drawn, biases, norms and tables of positions too."""
    model, config, fields = KINDS[kind]
    made = model(config(**{**fields, **SPECIAL, **overrides})).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed + OTHER_SEEDS.get(kind, 0))
    with torch.no_grad():
        for name, tensor in made.state_dict().items():
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.add_(0.1 * drawn) if tensor.dim() == 1 else tensor.copy_((1 if "logits" in name else 0.2) * drawn)
    return made


@cache
def pair(kind, seed=1, **overrides):
    """(transformers' model, ours)."""
    model = transformers_model(kind, seed, **overrides)
    return model, from_transformers(model)


def context(kind, seed, size=7):
    """Random inputs of one request: ``size`` tokens, or frames for all of Whisper's states."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "whisper":
        return Context({"input_features": torch.randn(FEATURES, 2 * STATES, generator=generator, dtype=torch.float64)})
    return Context({"input_ids": torch.randint(VOCAB, (size,), generator=generator)})


class Naive:
    """transformers' model on the inputs of ``given``, one whole forward at a time: for tests/reference."""

    def __init__(self, model, given):
        self.model = model
        self.inputs = {name: tensor[None] for name, tensor in given.inputs.items()}

    def __call__(self, ids):
        return self.model(**self.inputs, decoder_input_ids=ids, use_cache=False)


@torch.no_grad()
def copying_model(edits=None, sharpness=30.0):
    """A BART in float64 that says its source, one token after another, with tokens replaced by ``edits``.

    Of d_model channels VOCAB are a token's and the others a position's, one each; cross-attention finds the position.
    """
    width, places = 192, 192 - VOCAB
    sizes = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1)
    fields = BART | sizes | dict(d_model=width, max_position_embeddings=places - 2)
    made = BartForConditionalGeneration(BartConfig(**{**fields, **SPECIAL})).to(torch.float64).eval()
    for name, tensor in made.state_dict().items():
        tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    model = made.model
    model.shared.weight.copy_(torch.eye(VOCAB, width))
    for table in (model.encoder.embed_positions, model.decoder.embed_positions):
        table.weight[:, VOCAB:] = torch.eye(places)
    attention, place = model.decoder.layers[0].encoder_attn, torch.arange(VOCAB, width)
    attention.q_proj.weight[place, place], attention.k_proj.weight[place, place] = sharpness, 1.0
    said = torch.tensor([(edits or {}).get(token, token) for token in range(VOCAB)])
    attention.v_proj.weight[said, torch.arange(VOCAB)] = 10.0
    attention.out_proj.weight.copy_(torch.eye(width))
    return made
