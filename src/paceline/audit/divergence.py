"""How often drafting, or company in a batch, changes a text: near ties that products of another shape decide otherwise.

Greedy texts of the same prompts, drafted against plain one by one. In exact arithmetic they are equal; by the CPU
kernel too. Elsewhere a text may part where two tokens are nearer to each other than rounding, and goes its own way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.api import Loaded, Result, SamplingParams, generate
from paceline.api.build import DrafterLike
from paceline.core.plan import Fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where a text leaves the plain one: the first token that differs, and how much plain decoding preferred its own.

    ``margin`` is the difference of the two largest logits there, in plain decoding.
    """

    prompt: int
    position: int
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Of one way to decode, against plain decoding of the same texts one by one."""

    num_texts: int
    num_tokens: int  # compared: up to the first difference of each text
    partings: tuple[Parting, ...]
    smallest_margin: float  # over all tokens that were compared
    mean_acceptance_length: float

    @property
    def per_token(self) -> float:
        """Differences per token compared."""
        return len(self.partings) / self.num_tokens if self.num_tokens else 0.0


def measure(
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
    bare = replace(target, tokenizer=None)
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, logprobs=2)
    texts = [list(prompt) for prompt in prompts]
    plain = generate(bare, texts, params, batch_size=1)
    drafted = generate(
        bare,
        texts,
        replace(params, logprobs=None),
        drafter=drafter,
        num_draft_tokens=Fixed(num_draft_tokens),
        batch_size=batch_size,
    )
    partings, compared, smallest = [], 0, float("inf")
    for index, (one, other) in enumerate(zip(plain, drafted, strict=True)):
        pairs = zip(one.tokens, other.tokens, strict=True)
        at = next((at for at, (own, theirs) in enumerate(pairs) if own != theirs), None)
        end = num_tokens if at is None else at + 1
        compared += end
        smallest = min(smallest, *(margin(one, place) for place in range(end)))
        if at is not None:
            partings.append(Parting(prompt=index, position=at, margin=margin(one, at)))
    steps = sum(result.stats.steps for result in drafted)
    return Divergence(
        num_texts=len(texts),
        num_tokens=compared,
        partings=tuple(partings),
        smallest_margin=smallest,
        mean_acceptance_length=sum(len(result.tokens) for result in drafted) / steps,
    )


def margin(result: Result, position: int) -> float:
    """Difference of the two largest logits before a token."""
    assert result.logprobs is not None
    first, second = (value for _, value in result.logprobs[position].top_raw[:2])
    return first - second
