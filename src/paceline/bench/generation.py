"""What Paceline decodes, as configurations of the benchmark. Times nothing."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from paceline.api import Loaded, Result, SamplingParams, build_drafter, generate, total
from paceline.api.drafter_like import DrafterLike
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
    num_draft_tokens: int | Literal["auto"] = 0,
    batch_size: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    top_p: float = 1.0,
    verifier: str = "coupled",
) -> Configuration:
    """Continue ``prompts`` by exactly ``num_tokens`` tokens each, end-of-text or not, in groups of ``batch_size``.

    A group is one call and one part: its caches are made, its prompts read, its rows decoded to the last one's end.
    Prompt i is sampled with the seed ``seed + i``, in whatever group it is.
    """
    built = build_drafter(drafter, target=target)
    tokens = [encode(target, prompt) for prompt in prompts]
    bare = replace(target, tokenizer=None)
    params = [
        SamplingParams(max_tokens=num_tokens, temperature=temperature, top_p=top_p, seed=seed + index, ignore_eos=True)
        for index in range(len(prompts))
    ]

    def part(group: slice) -> Sample:
        results = generate(
            bare,
            tokens[group],
            params[group],
            drafter=built,
            verifier=verifier,
            # A plan, so that no step goes to measuring.
            num_draft_tokens=num_draft_tokens if num_draft_tokens == "auto" else Fixed(num_draft_tokens),
            batch_size=batch_size,
        )
        return _sample(results)

    groups = [slice(at, at + batch_size) for at in range(0, len(prompts), batch_size)]
    return Configuration(name=name, parts=[partial(part, group) for group in groups])


def _sample(results: Sequence[Result]) -> Sample:
    times = [result.stats.times for result in results]
    return Sample(
        tokens=tuple(result.token_ids for result in results),
        summary=total(results),
        texts=tuple(result.stats.summary for result in results),
        phases=(
            sum(one.draft for one in times),
            sum(one.score for one in times),
            sum(one.decide for one in times),
            sum(one.rest for one in times),
        ),
        decode_seconds=max(one.total for one in times) - max(one.queue + one.prefill for one in times),
    )
