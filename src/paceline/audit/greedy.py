"""Compares a server's greedy completions with those of the reference model."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.api import Loaded, Result, SamplingParams, generate
from paceline.audit.client import Completion
from paceline.audit.divergence import DivergencePoint, logit_margin
from paceline.text.stream import REPLACEMENT, TextStream
from paceline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyComparison:
    """Greedy completions of a server against the reference's."""

    num_sequences: int
    divergence_points: tuple[DivergencePoint, ...]
    near_tie: float  # margins up to this are explained by rounding

    @property
    def errors(self) -> tuple[DivergencePoint, ...]:
        """Divergence points that are no near ties."""
        return tuple(point for point in self.divergence_points if point.margin > self.near_tie)


def compare_greedy(
    target: Loaded,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
    *,
    max_tokens: int,
    near_tie: float,
) -> GreedyComparison:
    """Compare ``completions`` with plain greedy decoding of the same prompts. Raises what ``generate`` raises."""
    assert target.tokenizer is not None
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=2)
    plain = generate(target, [list(prompt) for prompt in prompts], params, batch_size=1)
    points = []
    for prompt, (result, completion) in enumerate(zip(plain, completions, strict=True)):
        position = first_divergence(target.tokenizer, result, completion)
        if position is not None:
            points.append(DivergencePoint(prompt=prompt, position=position, margin=logit_margin(result, position)))
    return GreedyComparison(num_sequences=len(completions), divergence_points=tuple(points), near_tie=near_tie)


def first_divergence(tokenizer: Tokenizer, result: Result, completion: Completion) -> int | None:
    """The first token of ``result`` whose text differs from the server's completion; None if they are equal."""
    stream, text = TextStream(tokenizer=tokenizer, prompt=result.prompt_tokens), ""
    stopped = result.finish_reason == "stop"
    for position, token in enumerate(result.token_ids[:-1] if stopped else result.token_ids):
        text += stream.push(token)
        if not completion.text.startswith(text):
            return position
    text += stream.flush()
    if text.rstrip(REPLACEMENT) == completion.text.rstrip(REPLACEMENT) and stopped == completion.stopped:
        return None
    return len(result.token_ids) - 1
