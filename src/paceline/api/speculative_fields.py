"""Every method and key of vLLM's ``speculative_config``, 0.32 and 0.33, and some of older versions, with its answer.

What is read, what the messages say and the table in docs/speculative_config.md all come from here.
"""

from collections.abc import Mapping

from paceline.api.generation_fields import Refusal

# Method of a draft head -> the kinds that `model` may be.
HEAD_METHODS: dict[str, tuple[str, ...]] = {
    "eagle": ("eagle",),
    "eagle3": ("eagle3",),
    "medusa": ("medusa",),
    "mlp_speculator": ("mlp_speculator",),
    "dflash": ("block",),
    "dspark": ("block",),
    "mtp": ("mtp",),
}

# Older names of the method mtp, of the layouts that are read.
MTP_ALIASES = ("deepseek_mtp", "glm4_moe_mtp", "mimo_mtp", "qwen3_5_mtp", "qwen3_next_mtp")

# Method -> what drafts here.
METHODS: dict[str, str] = {
    "ngram": "prompt lookup: the drafter `ngram`",
    "ngram_gpu": "as `ngram`, which runs on the target's device",
    "draft_model": "the draft model, or the draft head of any kind, in the directory or Hub id `model`",
    "suffix": "the drafter `suffix`, with vLLM's limits",
    **{
        method: f"the draft head `model`, ours or [another project's](formats.md), of the kind `{kinds[0]}`"
        for method, kinds in HEAD_METHODS.items()
        if method != "mtp"
    },
    "mtp": "the layers of multi-token prediction in the target's directory, or in that of `model`, or the "
    "[draft head](drafters/mtp.md) `model`",
    **dict.fromkeys(MTP_ALIASES, "as `mtp`; the layout is found in the files"),
}

MTP_METHODS = (
    "bailing_hybrid_mtp",
    "bailing_hybrid_v3_mtp",
    "dots3_note_mtp",
    "ernie_mtp",
    "exaone4_5_mtp",
    "exaone_moe_mtp",
    "gemma4_mtp",
    "glm4_moe_lite_mtp",
    "glm5_next_mtp",
    "glm_ocr_mtp",
    "hy_v3_mtp",
    "hy_v4_mtp",
    "inkling_mtp",
    "kimi_k3_mtp",
    "longcat_flash_mtp",
    "mimo_v2_mtp",
    "minimax_m3_mtp",
    "nemotron_h_mtp",
    "pangu_ultra_moe_mtp",
    "qwen4_exp_mtp",
    "step3p5_mtp",
    "step5_mtp",
)

INSTEAD = (
    "give method 'draft_model' with a draft model or a draft head as model; or method 'ngram', which needs neither"
)
# Method -> what to use here instead.
REFUSED_METHODS: dict[str, str] = {
    **dict.fromkeys(
        MTP_METHODS,
        f"models of this kind and their MTP layers are not read: {INSTEAD}. `paceline train` trains an `mtp` head",
    ),
    "custom_class": (
        "a class that is written for vLLM's engine cannot run here: derive one from Drafter or HostDrafter, and give "
        "FILE.py:NAME, or an instance of it, as the drafter"
    ),
    "extract_hidden_states": (
        "it drafts nothing: `paceline data features` computes hidden states, in the format of vllm-project/speculators"
    ),
}

NGRAM, SUFFIX = ("ngram", "ngram_gpu"), ("suffix",)
DRAFT_MODEL = ("draft_model",)
MODEL = (*DRAFT_MODEL, *HEAD_METHODS)

# Key -> the methods that read it, and its meaning.
HONOURED: dict[str, tuple[tuple[str, ...], str]] = {
    "method": (tuple(METHODS), "optional if `model` is given: `ngram` for that word, else `draft_model`"),
    "num_speculative_tokens": (
        tuple(METHODS),
        "drafted tokens per step, at least 1; with a tree its number of nodes. If it is left out, as many as pay, as "
        'with `num_draft_tokens="auto"`; of a head at most as many as it was trained for',
    ),
    "prompt_lookup_max": (NGRAM, "longest match in tokens; if only the shortest is given, that; else 5"),
    "prompt_lookup_min": (NGRAM, "shortest match in tokens; if only the longest is given, that; else 5"),
    "suffix_decoding_max_tree_depth": (
        SUFFIX,
        "tokens of a draft and of its match together, 2 to 257, by default 24: `max_depth`, and `max_match` one less",
    ),
    "suffix_decoding_max_cached_requests": (
        SUFFIX,
        "outputs that are kept for later requests, once they have ended; by default 10000, 0 keeps none: "
        "`max_outputs`. Never more than 1,000,000 tokens of them",
    ),
    "suffix_decoding_max_spec_factor": (SUFFIX, "drafted tokens for each that matches, by default 1.0: `factor`"),
    "suffix_decoding_min_token_prob": (SUFFIX, "least probability of a drafted token, by default 0.1: `min_prob`"),
    "model": (MODEL, "a directory or a Hub id, of a draft model or of a draft head; of `mtp` the target's by default"),
    "revision": (MODEL, "branch, tag or commit of a Hub id"),
    "draft_sample_method": (
        MODEL,
        "`greedy` drafts the most probable token, `probabilistic` samples; by default the verifier chooses",
    ),
    "use_heterogeneous_vocab": (
        DRAFT_MODEL,
        "true: a draft of another tokenizer drafts the tokens that both vocabularies have (TLI); by default that or an "
        "exchange of texts is chosen, by how many they have in common",
    ),
    "speculative_token_tree": (
        MODEL,
        "of older versions: the nodes of a draft tree, each its path of child ranks: `[(0,), (1,), (0, 0)]`",
    ),
    "rejection_sample_method": (
        tuple(METHODS),
        "`standard`, and `strict` of older versions: every lossless verifier does that; the verifier is an option of "
        "its own",
    ),
    "draft_tensor_parallel_size": (tuple(METHODS), "1: a draft runs on its target's device"),
}

# Value of rejection_sample_method -> what to use here instead.
REFUSED_RULES: dict[str, str] = {
    "block": "give the verifier 'block'",
    "fly": "it changes the distribution; give the verifier 'lossy_typical' if that is wanted",
    "synthetic": "its text is not the target's; `paceline roofline --acceptance` computes speeds for acceptance rates",
}

# Key -> why nothing depends on it here; a value other than None and False is noted.
HARMLESS: dict[str, str] = {
    "enforce_eager": "a draft runs as its target does, by enforce_eager of load",
    "moe_backend": "the draft's kernels are chosen here",
    "attention_backend": "the draft's kernels are chosen here",
    "kv_cache_dtype": "the draft's cache has the precision of its model",
    "max_model_len": "a draft model drafts up to its own context",
    "code_revision": "no code of a draft's checkpoint is run",
    "draft_load_config": "weights are read from safetensors",
    "use_local_argmax_reduction": "a draft runs on one device",
    "disable_padded_drafter_batch": "rows are not padded to one length",
    "disable_eagle_block_drop": "the cache has no blocks",
    "disable_lookahead_block_hashes": "the cache has no blocks",
    "disable_mqa_scorer": "all drafted tokens are scored in one forward",
    "disable_logprobs": "log-probabilities are those of the target, and given where they are asked for",
}

_OF_VLLM = "vLLM sets it itself; leave it out"
_OF_HEADS = "it changes how vLLM runs a head, and is not needed here; leave it out"
_OF_SYNTHETIC = REFUSED_RULES["synthetic"]
_OF_TYPICAL = "give the verifier 'lossy_typical:epsilon=0.09,delta=0.3', whose epsilon and delta are the two thresholds"
_LEAVE_OUT_COUNT = (
    "leave it and num_speculative_tokens out, and as much is drafted in every step as pays with that many rows"
)

# Key -> what to use here instead, unless its value asks for nothing.
REFUSED: Mapping[str, Refusal] = {
    "tensor_parallel_size": Refusal(reason="vLLM refuses it too; leave it out"),
    "quantization": Refusal(reason="load the draft quantized, by quantization of load or --draft-quantization"),
    "draft_lm_head_quantization": Refusal(reason=_OF_HEADS),
    "parallel_drafting": Refusal(
        reason="leave it out, and the model drafts token by token; or give a head that drafts all at once, such as "
        "`medusa` or `block`",
        neutral=(False,),
    ),
    "num_speculative_tokens_per_batch_size": Refusal(reason=_LEAVE_OUT_COUNT),
    "disable_by_batch_size": Refusal(reason=_LEAVE_OUT_COUNT),
    "enable_adaptive_verification": Refusal(reason=_LEAVE_OUT_COUNT, neutral=(False,)),
    "index_share_for_mtp_iteration": Refusal(reason=_OF_HEADS),
    "dspark_draft_topk": Refusal(reason=_OF_HEADS),
    "xpress_topc": Refusal(reason=_OF_HEADS),
    "synthetic_acceptance_rates": Refusal(reason=_OF_SYNTHETIC),
    "synthetic_acceptance_length": Refusal(reason=_OF_SYNTHETIC),
    "fly_window_size": Refusal(reason=REFUSED_RULES["fly"]),
    "fly_entropy_threshold": Refusal(reason=REFUSED_RULES["fly"]),
    "fly_entropy_top_k": Refusal(reason=REFUSED_RULES["fly"]),
    "acceptance_method": Refusal(reason=_OF_TYPICAL, neutral=("rejection_sampler",)),
    "posterior_threshold": Refusal(reason=_OF_TYPICAL),
    "posterior_alpha": Refusal(reason=_OF_TYPICAL),
    "target_model_config": Refusal(reason=_OF_VLLM),
    "target_parallel_config": Refusal(reason=_OF_VLLM),
    "draft_model_config": Refusal(reason=_OF_VLLM),
    "draft_parallel_config": Refusal(reason=_OF_VLLM),
}

KEYS = (*HONOURED, *HARMLESS, *REFUSED)
