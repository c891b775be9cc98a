"""Where greedy outputs with drafting diverge from plain greedy decoding, and by which logit margins.

In exact arithmetic the outputs are equal, and with the batch-invariant CPU kernel they are bitwise equal. Elsewhere
they can diverge where two logits are closer than the rounding differences between batch shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.api import Loaded, Result, SamplingParams, generate
from paceline.api.drafter_like import DrafterLike
from paceline.core.plan import Fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergencePoint:
    """The first token of a sequence that differs from plain decoding.

    ``margin`` is the difference of the two largest logits there, in plain decoding.
    """

    prompt: int
    position: int
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Comparison of outputs with plain decoding of the same prompts one by one."""

    num_sequences: int
    num_tokens: int  # compared: up to the first difference of each sequence
    divergence_points: tuple[DivergencePoint, ...]
    smallest_margin: float  # over all tokens that were compared
    mean_acceptance_length: float

    @property
    def per_token(self) -> float:
        """Divergence points per token compared."""
        return len(self.divergence_points) / self.num_tokens if self.num_tokens else 0.0


def measure_divergence(
    target: Loaded,
    prompts: Sequence[Sequence[int]],
    *,
    drafter: DrafterLike,
    num_tokens: int,
    num_draft_tokens: int = 5,
    batch_size: int = 1,
) -> Divergence:
    """Compare ``num_tokens`` greedy tokens after each prompt, drafted in rows of ``batch_size``, with plain decoding.

    Raises what ``generate`` raises.
    """
    target, token_ids = replace(target, tokenizer=None), [list(prompt) for prompt in prompts]
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, logprobs=2)
    plain = generate(target, token_ids, params, batch_size=1)
    drafted = generate(
        target,
        token_ids,
        replace(params, logprobs=None),
        drafter=drafter,
        num_draft_tokens=Fixed(num_draft_tokens),
        batch_size=batch_size,
    )
    points, compared, smallest = [], 0, float("inf")
    for prompt, (own, other) in enumerate(zip(plain, drafted, strict=True)):
        pairs = enumerate(zip(own.token_ids, other.token_ids, strict=True))
        position = next((position for position, (one, two) in pairs if one != two), None)
        end = num_tokens if position is None else position + 1
        compared += end
        smallest = min(smallest, *(logit_margin(own, at) for at in range(end)))
        if position is not None:
            points.append(DivergencePoint(prompt=prompt, position=position, margin=logit_margin(own, position)))
    steps = sum(result.stats.steps for result in drafted)
    return Divergence(
        num_sequences=len(token_ids),
        num_tokens=compared,
        divergence_points=tuple(points),
        smallest_margin=smallest,
        mean_acceptance_length=sum(len(result.token_ids) for result in drafted) / steps,
    )


def logit_margin(result: Result, position: int) -> float:
    """Difference of the two largest logits before a token."""
    assert result.logprobs is not None
    first, second = (value for _, value in result.logprobs[position].top_raw[:2])
    return first - second
