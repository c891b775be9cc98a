"""Small random transformers models of many architectures, float64, for the adapter to run or refuse."""

import torch
import transformers as hf

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
OPT = dict(ffn_dim=48, word_embed_proj_dim=32, init_std=0.2)

# Name -> a function that makes the model.
MODELS = {
    "stablelm": lambda: make("StableLm", SIZES),
    "starcoder2": lambda: make("Starcoder2", SIZES),
    "gpt-neox": lambda: make("GPTNeoX", SIZES, "num_key_value_heads"),
    "phi": lambda: make("Phi", SIZES),
    "olmo": lambda: make("Olmo", SIZES),
    "opt": lambda: make("OPT", SIZES, **OPT),
    "gpt2": lambda: make("GPT2", OLD),
    "llama": lambda: make("Llama", SIZES),
    "mixtral": lambda: make("Mixtral", SIZES, num_local_experts=4),
    "qwen2-moe": lambda: make("Qwen2Moe", SIZES, **EXPERTS),
    "gptj": lambda: make("GPTJ", OLD, rotary_dim=4),
    "codegen": lambda: make("CodeGen", OLD, rotary_dim=4),
    "cohere": lambda: make("Cohere", SIZES, logit_scale=0.5),
    "falcon": lambda: make("Falcon", SIZES, *FALCON, **FALCON_SIZES, multi_query=True),
    "falcon-new": lambda: make("Falcon", SIZES, *FALCON, **FALCON_SIZES, new_decoder_architecture=True, num_kv_heads=2),
    "gpt-bigcode": lambda: make("GPTBigCode", OLD),
    "gemma2": lambda: make("Gemma2", SIZES, **SOFTCAPS),
    "deepseek-v3": lambda: make("DeepseekV3", SIZES, **LATENT),
    "gpt-neo": lambda: make(
        "GPTNeo", SIZES, "num_attention_heads", num_layers=3, num_heads=4, attention_types=[[["global"], 3]]
    ),
    "bloom": lambda: make("Bloom", SIZES, "num_attention_heads", n_layer=3, n_head=4),
    "mpt": lambda: make("Mpt", SIZES, d_model=32, n_heads=4, n_layers=3, max_seq_len=CONTEXT),
    "falcon-alibi": lambda: make("Falcon", SIZES, *FALCON, **FALCON_SIZES, alibi=True),
    "ctrl": lambda: make("CTRL", OLD, dff=48),
    "bert": lambda: make("Bert", SIZES, is_decoder=True),
}
