"""A small head for every format, as its kind and options, for targets of 32 numbers, 3 layers and over 60 tokens."""

BLOCK = dict(block_size=4, num_layers=2, taps=(1, 3), mask_token_id=5)
SPARK = dict(**BLOCK, markov_rank=4, confidence=True)

EXAMPLES = {
    "dflash": ("block", BLOCK),
    "dspark": ("block", dict(**SPARK, anchor_first=True)),
    "dspark_specforge": ("block", SPARK),
    "eagle": ("eagle", dict(num_kv_heads=2, num_heads=4)),
    "eagle3": ("eagle3", dict(taps=(2, 1, 3), draft_vocab_size=24, fc_norm="each")),
    "eagle3_deepspec": ("eagle3", dict(taps=(1, 0, 2, 3), qk_norm=True)),
    "hydra": ("hydra", dict(num_blocks=3, shared_blocks=True, head_bias=True, prefix=True)),
    "medusa": ("medusa", dict(num_blocks=2, shared_blocks=True)),
    "medusa_vllm": ("medusa", dict(num_blocks=2, draft_vocab_size=24)),
    "mlp_speculator": ("mlp_speculator", dict(depth=3)),
    "mtp_deepseek": ("mtp", dict(embedding_first=True, normalized=True)),
    "mtp_mimo": ("mtp", dict(attention_bias=True)),
    "mtp_qwen": ("mtp", dict(embedding_first=True, normalized=True, zero_first=False)),
    "speculators_eagle3": ("eagle3", dict(draft_vocab_size=24, fc_norm="joint", norm_output=True, num_layers=2)),
    "speculators_dflash": ("block", dict(**BLOCK, draft_vocab_size=24)),
    "speculators_dflash2": (
        "block",
        dict(**BLOCK, markov_rank=4, markov_head="bilinear", candidates=9, conv_taps=2, conv_group_size=8),
    ),
    "speculators_dspark": ("block", dict(**SPARK, anchor_first=True, draft_vocab_size=24)),
    "speculators_peagle": ("eagle3", dict(draft_vocab_size=24, mask_token_id=7, num_layers=2, own_embedding=True)),
    "speculators_xpress": ("block", dict(**BLOCK, markov_rank=4, markov_head="refiner", draft_vocab_size=24)),
    "speculators_mtp": ("mtp", dict(embedding_first=True, zero_first=False, qk_norm=True)),
}
