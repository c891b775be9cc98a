"""Whether a server's greedy texts are the reference's, and where not, how much the reference prefers its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.api import Loaded, Result, SamplingParams, generate
from paceline.audit.client import Completion
from paceline.audit.divergence import Parting, margin
from paceline.text.stream import REPLACEMENT, TextStream
from paceline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Greedy texts against the reference's."""

    num_texts: int
    partings: tuple[Parting, ...]  # where texts leave the reference's
    near_tie: float  # partings at no more than this are the rounding's

    @property
    def errors(self) -> tuple[Parting, ...]:
        """Partings that no near tie excuses."""
        return tuple(one for one in self.partings if one.margin > self.near_tie)


def compare_greedy(
    target: Loaded,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Completion],
    *,
    text_length: int,
    near_tie: float,
) -> Greedy:
    """``answers`` beside plain greedy decoding of the same prompts, one by one. Raises what ``generate`` raises."""
    assert target.tokenizer is not None
    params = SamplingParams(temperature=0.0, max_tokens=text_length, logprobs=2)
    plain = generate(target, [list(prompt) for prompt in prompts], params, batch_size=1)
    partings = []
    for index, (own, answer) in enumerate(zip(plain, answers, strict=True)):
        at = part(target.tokenizer, own, answer)
        if at is not None:
            partings.append(Parting(prompt=index, position=at, margin=margin(own, at)))
    return Greedy(num_texts=len(answers), partings=tuple(partings), near_tie=near_tie)


def part(tokenizer: Tokenizer, own: Result, answer: Completion) -> int | None:
    """The first of the reference's tokens that the server's text does not go on with; None for the same text."""
    stream, text = TextStream(tokenizer=tokenizer, prompt=own.prompt_tokens), ""
    ended = own.finish_reason == "stop"
    for at, token in enumerate(own.tokens[:-1] if ended else own.tokens):
        text += stream.push(token)
        if not answer.text.startswith(text):
            return at
    text += stream.flush()
    if text.rstrip(REPLACEMENT) == answer.text.rstrip(REPLACEMENT) and ended == answer.stopped:
        return None
    return len(own.tokens) - 1
