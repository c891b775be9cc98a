"""Prompts in, texts out: all prompts of a call as one ragged batch. Knows nothing of files, clocks or terminals."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TypeAlias, final

from paceline.api.build import DrafterLike, build_drafter, build_verifier
from paceline.api.loading import Loaded
from paceline.api.results import FinishReason, Piece, Result, Source, sources_of
from paceline.core.batch import Finish, Request
from paceline.core.noise import split_seed
from paceline.core.plan import Fixed
from paceline.core.sampling import Sampling
from paceline.core.stats import Summary
from paceline.decode import Decoder
from paceline.text.stream import TextStream

Prompt: TypeAlias = str | Sequence[int]
Prompts: TypeAlias = str | Sequence[Prompt]
Samplings: TypeAlias = Sampling | Sequence[Sampling] | None


@final
class Generation:
    """One call in progress. Iterating decodes step by step; ``results`` may be asked for at any time.

    Everything is checked here, before any work; what is wrong raises ValueError.
    """

    def __init__(
        self,
        *,
        target: Loaded,
        prompts: Prompts,
        max_tokens: int,
        sampling: Samplings = None,
        drafter: DrafterLike = None,
        verifier: str = "coupled",
        num_draft_tokens: int = 5,
        ignore_eos: bool = False,
    ) -> None:
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not texts:
            raise ValueError("no prompts: give at least one")
        options = _per_prompt(sampling, len(texts))
        stop = () if ignore_eos else target.eos
        self.prompts = [encode(target, text) for text in texts]
        requests = [
            Request(tokens=prompt, max_tokens=max_tokens, sampling=option, stop_tokens=stop)
            for prompt, option in zip(self.prompts, options, strict=True)
        ]
        longest = max((len(prompt) for prompt in self.prompts), default=0) + max_tokens
        self.decoder = Decoder(
            target=target.lm,
            drafter=build_drafter(drafter, target=target),
            verifier=build_verifier(verifier),
            plan=Fixed(num_draft_tokens),
            rows=len(texts),
            max_length=min(longest, target.lm.max_positions),
        )
        tokenizer = target.tokenizer
        streams = [tokenizer and TextStream(tokenizer=tokenizer, prompt=prompt) for prompt in self.prompts]
        self._rows = [_Row(stream) for stream in streams]
        self.decoder.admit(requests, range(len(requests)))

    def __iter__(self) -> Iterator[tuple[Piece, ...]]:
        """The tokens of every step, row by row, until all rows have ended."""
        while any(row.finish is Finish.RUNNING for row in self._rows):
            self.decoder.step()
            report = self.decoder.read()
            pieces: list[Piece] = []
            for index, row in enumerate(self._rows):
                sources = sources_of(report, index)
                row.finish = report.finish[index]
                for at, (token, source) in enumerate(zip(report.tokens[index], sources, strict=True), start=1):
                    ends = at == len(sources) and row.finish is not Finish.RUNNING
                    pieces.append(Piece(row=index, token=token, text=row.push(token, source, ends), source=source))
            yield tuple(pieces)

    def results(self) -> list[Result]:
        """What each prompt has got so far, in their order; rows that still run count as cancelled."""
        return [
            Result(
                prompt_tokens=tuple(prompt),
                tokens=tuple(row.tokens),
                text=row.text,
                sources=tuple(row.sources),
                finish_reason=_REASONS[row.finish],
                stats=self.decoder.stats.summary([index]),
            )
            for index, (prompt, row) in enumerate(zip(self.prompts, self._rows, strict=True))
        ]


def generate(
    target: Loaded,
    prompts: Prompts,
    *,
    max_tokens: int,
    sampling: Samplings = None,
    drafter: DrafterLike = None,
    verifier: str = "coupled",
    num_draft_tokens: int = 5,
    ignore_eos: bool = False,
) -> list[Result]:
    """Continue every prompt, a string or token ids, by at most ``max_tokens`` tokens; results in their order.

    sampling: None is greedy; one for all prompts has its seed split per prompt; or one per prompt, taken as they are.
    drafter: a registered name, a draft directory or loaded draft, a Drafter, or None for plain decoding. With the
    verifier 'coupled' the tokens do not depend on it, only the time does. Raises ValueError before any work.
    """
    generation = Generation(
        target=target,
        prompts=prompts,
        max_tokens=max_tokens,
        sampling=sampling,
        drafter=drafter,
        verifier=verifier,
        num_draft_tokens=num_draft_tokens,
        ignore_eos=ignore_eos,
    )
    for _ in generation:
        pass
    return generation.results()


def encode(target: Loaded, prompt: Prompt) -> list[int]:
    """Token ids of a prompt. Raises ValueError for a string where the target has no tokenizer."""
    if not isinstance(prompt, str):
        return list(prompt)
    if target.tokenizer is None:
        raise ValueError(
            f"{target.path} has no tokenizer.json: give the prompt as token ids, or put the file beside config.json"
        )
    return target.tokenizer.encode(prompt)


def total(results: Sequence[Result]) -> Summary:
    """Counts of all results together; there must be at least one."""
    return reduce(add, (result.stats for result in results))


_REASONS: dict[Finish, FinishReason] = {Finish.RUNNING: "cancelled", Finish.STOP: "stop", Finish.LENGTH: "length"}


class _Row:
    """What the host keeps of one prompt's continuation."""

    def __init__(self, stream: TextStream | None) -> None:
        self.stream = stream
        self.tokens: list[int] = []
        self.sources: list[Source] = []
        self.finish = Finish.RUNNING
        self._text: list[str] = []

    @property
    def text(self) -> str | None:
        """The text so far; a character still incomplete is left out."""
        return None if self.stream is None else "".join(self._text)

    def push(self, token: int, source: Source, ends: bool) -> str:
        """Append a token; the text it completes, and what was held back if it ends the row."""
        self.tokens.append(token)
        self.sources.append(source)
        if self.stream is None:
            return ""
        text = self.stream.push(token) + (self.stream.flush() if ends else "")
        self._text.append(text)
        return text


def _per_prompt(sampling: Samplings, count: int) -> list[Sampling]:
    """One Sampling for each prompt."""
    if sampling is None:
        return [Sampling()] * count
    if isinstance(sampling, Sampling):
        return [replace(sampling, seed=split_seed(sampling.seed, index)) for index in range(count)]
    if len(sampling) != count:
        raise ValueError(f"{len(sampling)} sampling options for {count} prompts: give one for all, or one for each")
    return list(sampling)
