"""Small random transformers models of many architectures, float64, that the adapter runs or refuses."""

import warnings
from functools import cache

import torch
import transformers as hf

from paceline.models.adapter.adapt import adapt
from tests.models.encoder_decoders import BART, SPECIAL, transformers_model
from tests.models.encoder_decoders import VOCAB as SMALL
from tests.tiny import VOCAB

CONTEXT = 512
SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=CONTEXT,
    initializer_range=0.2,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
OLD = dict(
    vocab_size=VOCAB,
    n_embd=32,
    n_layer=3,
    n_head=4,
    n_positions=CONTEXT,
    initializer_range=0.2,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)


def make(kind, fields, *drop, seed=1, **more):
    """A random causal LM of transformers' class ``<kind>ForCausalLM``, in evaluation mode."""
    torch.manual_seed(seed)
    config = getattr(hf, f"{kind}Config")(**{**{n: v for n, v in fields.items() if n not in drop}, **more})
    with warnings.catch_warnings():
        # Before 5.23 the file of GPT-BigCode calls it when it is imported, which torch tells of.
        warnings.filterwarnings("ignore", ".*torch.jit.script.* is deprecated", DeprecationWarning)
        model = hf.AutoModelForCausalLM.from_config(config).to(torch.float64).eval()
    model.set_experts_implementation("eager")  # the others have no double precision
    return shaken(model)


def shaken(model, seed=5):
    """``model`` with weights large enough that no two tokens are near each other, and no norm or bias trivial."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return model


EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)
FALCON = ("intermediate_size", "num_key_value_heads", "max_position_embeddings")
FALCON_SIZES = dict(max_position_embeddings=CONTEXT, ffn_hidden_size=48)
SOFTCAPS = dict(head_dim=8, final_logit_softcapping=3.0, attn_logit_softcapping=5.0, query_pre_attn_scalar=8)
LATENT = dict(
    q_lora_rank=16, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=4,
    n_group=2, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1,
    num_key_value_heads=4,
)  # fmt: skip
GPT_NEO = dict(num_layers=3, num_heads=4, attention_types=[[["global", "local", "global"], 1]])
SINKS = dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=256)
LLAMA4 = dict(attention_chunk_size=256, num_local_experts=2, intermediate_size_mlp=32, head_dim=8)
OPT = dict(ffn_dim=48, word_embed_proj_dim=32, init_std=0.2)

HYBRID = dict(layer_types=["linear_attention", "full_attention", "linear_attention"])
MAMBA_SIZES = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2)
VISION = dict(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
)

# Style -> name -> a function that makes the model.
STYLES = {
    "rotary positions": {
        "stablelm": lambda: make("StableLm", SIZES),
        "starcoder2": lambda: make("Starcoder2", SIZES),
        "phi": lambda: make("Phi", SIZES),
        "olmo": lambda: make("Olmo", SIZES),
    },
    "learned positions": {
        "opt": lambda: make("OPT", SIZES, **OPT),
        "gpt-neo": lambda: make("GPTNeo", SIZES, "num_attention_heads", **GPT_NEO),
        "bert-decoder": lambda: make("Bert", SIZES, is_decoder=True),
    },
    "sinusoidal positions": {"ctrl": lambda: make("CTRL", OLD, dff=48)},
    "experts": {
        "mixtral": lambda: make("Mixtral", SIZES, num_local_experts=4),
        "qwen2-moe": lambda: make("Qwen2Moe", SIZES, **EXPERTS),
    },
    "attention beside the feed-forward part": {
        "gptj": lambda: make("GPTJ", OLD, rotary_dim=4),
        "codegen": lambda: make("CodeGen", OLD, rotary_dim=4),
        "cohere": lambda: make("Cohere", SIZES, logit_scale=0.5),
    },
    "one key-value head": {
        "gpt-bigcode": lambda: make("GPTBigCode", OLD),
        "falcon": lambda: make("Falcon", SIZES, *FALCON, **FALCON_SIZES, multi_query=True),
    },
    "capped logits": {"gemma2": lambda: make("Gemma2", SIZES, **SOFTCAPS)},
    "keys and values of two sizes": {"deepseek-v3": lambda: make("DeepseekV3", SIZES, **LATENT)},
    "attention sinks": {"gpt-oss": lambda: make("GptOss", SIZES, **SINKS)},
    "chunked attention": {"llama4": lambda: make("Llama4Text", SIZES, **LLAMA4)},
    "native too": {"gpt2": lambda: make("GPT2", OLD), "llama": lambda: make("Llama", SIZES)},
}
MODELS = {name: maker for models in STYLES.values() for name, maker in models.items()}


@cache
def adapted(name):
    """(transformers model, the adapter over it)."""
    model = MODELS[name]()
    return model, adapt(model)


RECURRENT = "recurrent or convolutional state cannot go back"
UNPACKED = r"cannot be run on trees: its forward fails with a mask of four axes over slots \(ValueError"
POSITIONS = "derives positions from cache slots"

# Name -> (a function that makes the model, why it is refused).
NO_POSITIONS = {name: value for name, value in {**BART, **SPECIAL}.items() if name != "max_position_embeddings"}
GEMMA = SIZES | dict(head_dim=8, num_hidden_layers=2, max_position_embeddings=128, sliding_window=128, pad_token_id=0)
BOTH_WAYS = {  # encoder-decoders without a native family, and two that have one
    "plbart": lambda: encoder_decoder("PLBartForConditionalGeneration"),
    "blenderbot": lambda: encoder_decoder("BlenderbotForConditionalGeneration"),
    "blenderbot-small": lambda: encoder_decoder("BlenderbotSmallForConditionalGeneration"),
    "m2m-100": lambda: encoder_decoder("M2M100ForConditionalGeneration", pad_token_id=4),
    "mvp": lambda: encoder_decoder("MvpForConditionalGeneration"),
    "pegasus-x": lambda: encoder_decoder("PegasusXForConditionalGeneration", block_size=8, num_global_tokens=4),
    "bigbird-pegasus": lambda: encoder_decoder(
        "BigBirdPegasusForConditionalGeneration", attention_type="original_full"
    ),
    "t5gemma": lambda: t5gemma(),
    "bart": lambda: transformers_model("bart"),
    "marian": lambda: transformers_model("marian"),
}
ENCODER_DECODERS = BOTH_WAYS | {
    "led": lambda: encoder_decoder(
        "LEDForConditionalGeneration",
        NO_POSITIONS,
        attention_window=[8, 8],
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=128,
    ),
}
REFUSED = {
    "bloom": (lambda: make("Bloom", SIZES, "num_attention_heads", n_layer=3, n_head=4), UNPACKED),
    "falcon-alibi": (lambda: make("Falcon", SIZES, *FALCON, **FALCON_SIZES, alibi=True), UNPACKED),
    "mpt": (lambda: make("Mpt", SIZES, d_model=32, n_heads=4, n_layers=3, max_seq_len=CONTEXT), POSITIONS),
    "bert-encoder": (lambda: make("Bert", SIZES), "ignores a mask of four axes"),
    "mamba": (lambda: make("Mamba", MAMBA_SIZES, state_size=4), RECURRENT),
    "rwkv": (lambda: make("Rwkv", MAMBA_SIZES), RECURRENT),
    "recurrent-gemma": (lambda: make("RecurrentGemma", SIZES, attention_window_size=16), RECURRENT),
    "jamba": (lambda: make("Jamba", SIZES, use_mamba_kernels=False), RECURRENT),
    "falcon-h1": (lambda: make("FalconH1", SIZES), RECURRENT),
    "qwen3-next": (lambda: make("Qwen3Next", SIZES, **EXPERTS, **HYBRID, head_dim=8), RECURRENT),
    "lfm2": (lambda: make("Lfm2", SIZES, layer_types=["conv", "full_attention", "conv"]), RECURRENT),
    "minimax-m3": (
        lambda: make("MiniMaxM3VLText", SIZES, num_local_experts=2, head_dim=8),
        r"its attention chooses which tokens to read \(index_topk_blocks\)",
    ),
    "deepseek-v3.2": (lambda: make("DeepseekV32", SIZES, **LATENT), "keeps more than keys and values"),
    "t5": (lambda: t5(), "it adds a bias by the distance of cache slots, .*; give a T5 or mT5, which run"),
    "whisper": (lambda: transformers_model("whisper"), "an encoder-decoder that reads no text"),
    "led": (lambda: ENCODER_DECODERS["led"](), "ignores a mask of four axes"),
    "gemma3-vision": (lambda: gemma3(), "it takes more than text; give its language model alone"),
}


def encoder_decoder(kind, fields=BART | SPECIAL, **more):
    """A random encoder-decoder of transformers' class ``kind``, float64, with the sizes of the native ones."""
    model = getattr(hf, kind)
    torch.manual_seed(1)
    return rough(model(model.config_class(**{**fields, **more})).to(torch.float64).eval())


def t5gemma():
    torch.manual_seed(1)
    config = hf.T5GemmaConfig(
        encoder=GEMMA, decoder=GEMMA | dict(cross_attention_hidden_size=32), vocab_size=SMALL, **SPECIAL
    )
    config.encoder.vocab_size = config.decoder.vocab_size = SMALL
    return rough(hf.T5GemmaForConditionalGeneration(config).to(torch.float64).eval())


@torch.no_grad()
def rough(model, seed=1):
    """``model`` with large matrices, so that its output depends on its source."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def t5():
    torch.manual_seed(1)
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=VOCAB, d_model=32, num_layers=2, num_heads=4)).eval()


def gemma3():
    config = hf.Gemma3Config(text_config=dict(SIZES, head_dim=8), vision_config=VISION)
    return hf.Gemma3ForConditionalGeneration(config).eval()
