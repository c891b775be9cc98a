"""Small random models. Weights have a standard deviation of about 0.2, because tiny ones make near ties."""

from functools import cache

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from paceline.models.families import FAMILIES
from paceline.models.loading import build
from paceline.models.native.decoder import DecoderLM

VOCAB = 61

LLAMA = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
    initializer_range=0.2,
)
GPT2 = dict(
    vocab_size=VOCAB,
    n_embd=32,
    n_layer=3,
    n_head=4,
    n_positions=128,
    bos_token_id=None,
    eos_token_id=None,
    initializer_range=0.2,
)


def llama(seed=1, dtype=torch.float64, **overrides):
    """A random transformers Llama."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**LLAMA, **overrides})).to(dtype).eval()


def gpt2(seed=1, dtype=torch.float64, **overrides):
    """A random transformers GPT-2."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(**{**GPT2, **overrides})).to(dtype).eval()


def causal(kind, seed=1, dtype=torch.float64, **overrides):
    """A random transformers model of the family ``kind``, whose config has Llama's fields."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**LLAMA, **overrides})
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


def native(model):
    """Our decoder with the weights of a transformers model."""
    raw = model.config.to_dict()
    family = FAMILIES[raw["model_type"]]
    state = {own: value for name, tensor in model.state_dict().items() for own, value in family.read(name, tensor)}
    return build(family.configure(raw), {name: tensor.clone() for name, tensor in state.items()})


@cache
def target(seed=1):
    """The target of most tests: (transformers model, ours), float64."""
    model = llama(seed)
    return model, native(model)


@cache
def draft(seed=2, **overrides):
    """A one-layer draft over the same vocabulary that agrees with nothing in particular."""
    return native(llama(seed, num_hidden_layers=1, **overrides))


@cache
def looping_target(seed=12):
    """A target whose attention adds nothing: each token decides the next, so that greedy text soon repeats."""
    model = llama(seed)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return model, native(model)


def noisy(model, scale, seed=3):
    """A model of any kind with noise on its weights: the oracle draft, right often but not always."""
    generator = torch.Generator().manual_seed(seed)
    other = type(model)(model.config)  # not a copy: fake weights have none
    state = {}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        state[name] = parameter + scale * parameter.std() * noise.to(parameter.dtype)
    other.load_state_dict(state, assign=True, strict=False)  # tied weights have one name
    if not isinstance(model, DecoderLM):
        other.tie_weights()
    return other.requires_grad_(False).eval()
