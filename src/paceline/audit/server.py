"""Whether a server gives the texts of the model that it says it serves, asked of its completions. Prints nothing.

The model itself, the reference, is at hand: its plain greedy texts, and its laws by plain forwards of whole texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paceline.api import Loaded, Result, SamplingParams, generate
from paceline.api.prompts import encode
from paceline.audit.client import Ask, Completion, Server
from paceline.audit.distributions import laws_after
from paceline.audit.goodness_of_fit import Tokens, Verdict
from paceline.audit.greedy import Greedy, compare_greedy
from paceline.audit.reported import Reader, Telling, choose_telling
from paceline.audit.two_sample import FEWEST, Texts, compare

FAR_LOGPROBS = 0.1  # nats, of the mean difference; half precision gives a few hundredths
HOPELESS = 0.9  # of the texts, that tell nothing
PATIENCE = 8  # times as many texts as would do if none ended early
APART = 500_000  # between the seeds of the server's texts and the reference's
Tell = Callable[[str, int], None]  # what is being done, and how many tokens have been judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How many of ``num_texts`` sampled texts came again with the same seed."""

    num_texts: int
    num_equal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """Of ``count`` log-probabilities that the server gives for its sampled tokens, to the reference's."""

    count: int
    mean: float  # absolute difference, nats
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """How the tokens of the sampled texts are known."""

    telling: str
    num_texts: int
    num_dropped: int  # texts whose tokens cannot be known
    num_cut: int  # texts that are judged up to a token that cannot be known


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What was found; None where the server does not tell."""

    model: str  # as the server calls it
    asked: dict[str, object]  # beside the plain words of the interface, as far as the server takes it
    num_prompts: int
    misread: tuple[int, ...] | None  # prompts that the server reads as another number of tokens
    greedy: Greedy
    repeats: Repeats
    sampled: Sampled
    law: Verdict
    logprobs: Nearness | None

    @property
    def failures(self) -> list[str]:
        """What speaks against the server, in words."""
        found = []
        if self.misread:
            found.append(
                f"{len(self.misread)} of {self.num_prompts} prompts are read as another number of tokens: another "
                "tokenizer, or a beginning-of-text token more or less"
            )
        if self.greedy.errors:
            found.append(
                f"{len(self.greedy.errors)} greedy texts leave the reference's where it prefers its own token by more "
                f"than {self.greedy.near_tie:g} nats"
            )
        if not self.law.honest:
            found.append("sampled tokens do not have the reference's law")
        if self.logprobs is not None and self.logprobs.mean > FAR_LOGPROBS:
            found.append(f"the server's log-probabilities differ from the reference's by more than {FAR_LOGPROBS:g}")
        return found

    @property
    def notes(self) -> list[str]:
        """What is no failure but should be known, in words."""
        found = []
        if self.repeats.num_equal < self.repeats.num_texts:
            missing = self.repeats.num_texts - self.repeats.num_equal
            found.append(
                f"{missing} of {self.repeats.num_texts} sampled texts do not come again with the same seed: the server "
                "ignores seeds, or its numbers depend on what else it does"
            )
        if self.sampled.telling == Telling.TEXT.value:
            found.append(
                "the server names no tokens: texts were encoded anew, which may not give those that were drawn, and "
                "are judged against texts of the reference that went the same way"
            )
        return found


def audit_server(
    target: Loaded,
    server: Server,
    prompts: Sequence[str],
    *,
    model: str,
    num_tokens: int,
    text_length: int,
    batch_size: int,
    seed: int,
    near_tie: float,
    tell: Tell,
) -> Served:
    """Ask ``server`` for greedy and sampled texts of ``model``, ``batch_size`` at once, and judge ``num_tokens``.

    Raises ServerError for what the server refuses, ValueError for counts below 1, for a reference without a tokenizer,
    where no token can be known, and what ``generate`` refuses.
    """
    check_counts(num_tokens=num_tokens, text_length=text_length, batch_size=batch_size, near_tie=near_tie)
    tokenizer = target.tokenizer
    if tokenizer is None:
        raise ValueError(f"{target.name} has no tokenizer: give a directory that holds one")
    encoded = [encode(target, text) for text in prompts]
    longest, limit = max(map(len, encoded)), target.lm.max_positions
    if longest + text_length > limit:
        raise ValueError(
            f"prompt of {longest} tokens and --text-length {text_length} exceed the limit of {limit} tokens; lower "
            "--text-length"
        )

    def ask(temperature: float, run: int) -> list[Completion]:
        asks = [
            Ask(prompt=text, max_tokens=text_length, temperature=temperature, seed=seed + 1000 * run + index)
            for index, text in enumerate(prompts)
        ]
        return server.complete_all(model, asks, at_once=batch_size)

    tell("the server's greedy texts", 0)
    answers = ask(0.0, 0)
    tell("the reference's greedy texts", 0)
    greedy = compare_greedy(target, encoded, answers, text_length=text_length, near_tie=near_tie)
    counts = [(answer.num_prompt_tokens, len(own)) for answer, own in zip(answers, encoded, strict=True)]
    known = all(count is not None for count, _ in counts)
    vocab_size = target.lm.vocab_size
    telling = choose_telling(answers, tokenizer=tokenizer, vocab_size=vocab_size)
    reader = Reader(telling=telling, tokenizer=tokenizer, eos=target.eos, vocab_size=vocab_size)
    judge = _Judge(target, reader, seed=seed)
    least = -(-num_tokens // (len(prompts) * text_length))
    first: list[Completion] = []
    for run in range(PATIENCE * max(least, -(-FEWEST // len(prompts)))):
        tell("sampled texts", judge.num_tokens)
        answers = ask(1.0, run)
        first = first or answers
        for prompt, answer in zip(encoded, answers, strict=True):
            judge.add(prompt, answer)
        if telling is Telling.TEXT:
            judge.add_reference(encoded, text_length, run)
        if judge.enough(num_tokens) or judge.hopeless:
            break
    tell("the same seeds again", judge.num_tokens)
    same = [one.text == other.text for one, other in zip(first, ask(1.0, 0), strict=True)]
    return Served(
        model=model,
        asked=dict(server.asked),
        num_prompts=len(prompts),
        misread=tuple(at for at, (count, own) in enumerate(counts) if count != own) if known else None,
        greedy=greedy,
        repeats=Repeats(num_texts=len(same), num_equal=sum(same)),
        sampled=judge.sampled(),
        law=judge.verdict(),
        logprobs=judge.nearness(),
    )


def check_counts(*, num_tokens: int, text_length: int, batch_size: int, near_tie: float) -> None:
    """Raise ValueError for what cannot be judged with."""
    if num_tokens < 1 or text_length < 2:
        raise ValueError(
            f"{num_tokens} tokens in texts of {text_length}: give at least 1 token and texts of at least 2"
        )
    if batch_size < 1:
        raise ValueError(f"--batch-size {batch_size}: give at least 1")
    if not near_tie >= 0:
        raise ValueError(f"--near-tie {near_tie:g}: give a number of nats from 0")


class _Judge:
    """Adds up what the sampled texts say."""

    def __init__(self, target: Loaded, reader: Reader, *, seed: int) -> None:
        self._target, self._reader, self._seed = target, reader, seed
        self._tokens = Tokens(seed=seed)
        self._texts, self._reference = Texts(seed=seed), Texts(seed=seed + 1)
        self._num_texts, self._num_dropped, self._num_cut = 0, 0, 0
        self._differences: list[float] = []
        self.num_tokens = 0

    def add(self, prompt: Sequence[int], completion: Completion) -> None:
        """One text of the server's."""
        self._num_texts += 1
        drawn = self._reader.read(prompt, completion)
        self._num_dropped += drawn is None
        if drawn is None or not drawn.tokens:
            return
        self._num_cut += drawn.cut
        self.num_tokens += len(drawn.tokens)
        laws, tokens = laws_after(self._target.lm, prompt, drawn.tokens), torch.tensor(drawn.tokens)
        own = self._reader.laws(laws)
        if self._reader.telling is Telling.TEXT:
            self._texts.add(own, tokens)
            return
        self._tokens.add(own, tokens)
        given = completion.logprobs or ()
        logprobs = laws.gather(-1, tokens[:, None])[:, 0].log().tolist()
        for token, own_logprob, logprob in zip(drawn.tokens, logprobs, given, strict=False):
            if logprob is not None and token not in self._target.eos:  # which of several ends was drawn is not told
                self._differences.append(abs(own_logprob - logprob))

    def add_reference(self, prompts: Sequence[Sequence[int]], text_length: int, run: int) -> None:
        """Texts of the reference's own, taken for what can be told of them from their text alone."""
        params = [
            SamplingParams(temperature=1.0, max_tokens=text_length, seed=self._seed + APART + 1000 * run + index)
            for index in range(len(prompts))
        ]
        for prompt, result in zip(prompts, generate(self._target, [list(one) for one in prompts], params), strict=True):
            drawn = self._reader.read(prompt, _as_served(result))
            if drawn is not None and drawn.tokens:
                laws = self._reader.laws(laws_after(self._target.lm, prompt, drawn.tokens))
                self._reference.add(laws, torch.tensor(drawn.tokens))

    def enough(self, num_tokens: int) -> bool:
        """Whether so many tokens have been judged, and as many texts as their comparison takes."""
        few = self._reader.telling is Telling.TEXT and min(self._texts.num_texts, self._reference.num_texts) < FEWEST
        return self.num_tokens >= num_tokens and not few

    @property
    def hopeless(self) -> bool:
        """Whether nearly no text tells its tokens."""
        return self._num_texts >= FEWEST and self._num_dropped > HOPELESS * self._num_texts

    def verdict(self) -> Verdict:
        """Raises ValueError where too little can be judged."""
        if self.num_tokens == 0 or self.hopeless or not self.enough(0):
            raise ValueError(
                f"only {self._num_texts - self._num_dropped} of {self._num_texts} sampled texts tell their tokens: let "
                "the server give logprobs, take shorter texts by --text-length, or more by --num-tokens"
            )
        if self._reader.telling is Telling.TEXT:
            return compare(self._texts, self._reference)
        return self._tokens.verdict()

    def sampled(self) -> Sampled:
        return Sampled(
            telling=self._reader.telling.value,
            num_texts=self._num_texts,
            num_dropped=self._num_dropped,
            num_cut=self._num_cut,
        )

    def nearness(self) -> Nearness | None:
        if not self._differences:
            return None
        count = len(self._differences)
        return Nearness(count=count, mean=sum(self._differences) / count, largest=max(self._differences))


def _as_served(result: Result) -> Completion:
    """What a server that names no tokens would say of the reference's text."""
    assert result.text is not None
    return Completion(
        text=result.text,
        stopped=result.finish_reason == "stop",
        token_ids=None,
        tokens=None,
        logprobs=None,
        num_prompt_tokens=None,
        num_tokens=len(result.tokens),
    )
