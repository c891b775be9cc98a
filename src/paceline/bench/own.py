"""Paceline's own runs as configurations of the benchmark. Times nothing."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.api import Loaded, SamplingParams, build_drafter, generate, total
from paceline.api.build import DrafterLike
from paceline.api.prompts import encode
from paceline.bench.runner import Configuration, Sample
from paceline.core.plan import Fixed


def decoding(
    name: str,
    *,
    target: Loaded,
    prompts: Sequence[str | Sequence[int]],
    num_tokens: int,
    drafter: DrafterLike = None,
    num_draft_tokens: int = 5,
    one_by_one: bool = True,
) -> Configuration:
    """Greedy continuations of exactly ``num_tokens`` tokens, end-of-text or not; tokens only, no text.

    ``one_by_one`` decodes each prompt alone, as one user would; otherwise all are rows of one batch.
    """
    built = build_drafter(drafter, target=target)
    encoded = [encode(target, prompt) for prompt in prompts]
    calls = [[prompt] for prompt in encoded] if one_by_one else [encoded]
    bare = replace(target, tokenizer=None)

    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)

    def run() -> Sample:
        results = [
            result
            for call in calls
            for result in generate(
                bare,
                call,
                params,
                drafter=built,
                num_draft_tokens=Fixed(num_draft_tokens),  # a plan, so that no step is spent on measuring
                batch_size=len(call),
            )
        ]
        return Sample(tokens=tuple(result.tokens for result in results), summary=total(results))

    return Configuration(name=name, run=run)
