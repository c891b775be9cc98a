"""Other people's decoders as configurations of the same benchmark, each with its best plain settings. Times nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from paceline.bench.runner import Configuration, Sample


def transformers_plain(
    name: str, *, path: Path, prompts: Sequence[Sequence[int]], num_tokens: int, dtype: torch.dtype | None = None
) -> Configuration:
    """transformers' ``generate``: greedy, with its cache, one prompt at a time, exactly ``num_tokens`` tokens each.

    The input tensors and the configuration are made once, and end-of-text is off, so that every call does the same
    work as ours. ``dtype`` None keeps the precision of the files, as our loader does.
    """
    # Any: transformers' own annotations do not let its checker bind ``generate``.
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto", local_files_only=True).eval()
    # A model's own defaults would join the settings below: none may remain.
    model.generation_config = GenerationConfig()
    settings = GenerationConfig(
        max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, use_cache=True, eos_token_id=None
    )
    inputs = [torch.tensor([list(prompt)]) for prompt in prompts]
    masks = [torch.ones_like(tokens) for tokens in inputs]

    @torch.inference_mode()
    def run() -> Sample:
        texts = [
            model.generate(tokens, attention_mask=mask, generation_config=settings)[0, tokens.shape[1] :]
            for tokens, mask in zip(inputs, masks, strict=True)
        ]
        return Sample(tokens=tuple(tuple(text.tolist()) for text in texts), summary=None)

    return Configuration(name=name, run=run)
