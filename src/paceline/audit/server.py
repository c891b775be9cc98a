"""Audits an OpenAI-compatible server: whether its completions are those of the model that it claims to serve.

The model itself is loaded as the reference: the server's greedy completions are compared with its plain decoding, and
the server's sampled tokens with its next-token distributions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.api import Loaded
from paceline.api.prompts import encode
from paceline.audit.client import Completion, CompletionClient, CompletionRequest
from paceline.audit.goodness_of_fit import GoodnessOfFit
from paceline.audit.greedy import GreedyComparison, compare_greedy
from paceline.audit.model import check_lengths
from paceline.audit.samples import LogprobError, RecoverySummary, SampledCompletions
from paceline.audit.token_recovery import TokenRecovery, TokenSource, choose_source
from paceline.audit.two_sample import MIN_SEQUENCES

MAX_LOGPROB_ERROR = 0.1  # nats, of the mean difference; half precision gives a few hundredths
MAX_ROUNDS_FACTOR = 8  # times the rounds needed if no completion ended early
Progress = Callable[[str, int], None]  # the current check, and how many tokens have been tested


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRepeats:
    """How many of ``num_sequences`` sampled completions are equal when requested again with the same seed."""

    num_sequences: int
    num_equal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAudit:
    """Results of an audit; None for what the server does not report."""

    model: str  # its served name
    extra_fields: dict[str, object]  # request fields beyond the basic ones that the server accepts
    num_prompts: int
    miscounted_prompts: tuple[int, ...] | None  # prompts that the server counts as another number of tokens
    greedy: GreedyComparison
    seed_repeats: SeedRepeats
    recovery: RecoverySummary
    goodness_of_fit: GoodnessOfFit
    logprobs: LogprobError | None

    @property
    def failures(self) -> list[str]:
        """Descriptions of the failed checks."""
        failures = []
        if self.miscounted_prompts:
            failures.append(
                f"{len(self.miscounted_prompts)} of {self.num_prompts} prompts have another number of tokens on the "
                "server: another tokenizer, or a beginning-of-text token more or less"
            )
        if self.greedy.errors:
            failures.append(
                f"{len(self.greedy.errors)} greedy completions diverge from the reference's where its logit margin is "
                f"above {self.greedy.near_tie:g} nats"
            )
        if not self.goodness_of_fit.passed:
            failures.append("sampled tokens do not follow the reference's distribution")
        if self.logprobs is not None and self.logprobs.mean > MAX_LOGPROB_ERROR:
            failures.append(f"the server's logprobs differ from the reference's by more than {MAX_LOGPROB_ERROR:g}")
        return failures

    @property
    def notes(self) -> list[str]:
        """Remarks that are not failures."""
        notes = []
        if self.seed_repeats.num_equal < self.seed_repeats.num_sequences:
            missing = self.seed_repeats.num_sequences - self.seed_repeats.num_equal
            notes.append(
                f"{missing} of {self.seed_repeats.num_sequences} sampled completions differ when requested again with "
                "the same seed: the server ignores seeds, or its outputs depend on its load"
            )
        if self.recovery.source == TokenSource.TEXT.value:
            notes.append(
                "the server reports no token ids: its text was re-encoded, possibly to other tokens than were sampled, "
                "and is tested against re-encoded text of the reference"
            )
        return notes


def audit_server(
    target: Loaded,
    client: CompletionClient,
    prompts: Sequence[str],
    *,
    model: str,
    num_tokens: int,
    text_length: int,
    batch_size: int,
    seed: int,
    near_tie: float,
    on_progress: Progress,
) -> ServerAudit:
    """Request greedy and sampled completions of ``model``, ``batch_size`` at once, and test ``num_tokens`` tokens.

    Raises ServerError for what the server refuses, ValueError for counts below 1, for a reference without a tokenizer,
    where token ids cannot be recovered, and what ``generate`` refuses.
    """
    check_counts(num_tokens=num_tokens, text_length=text_length, batch_size=batch_size, near_tie=near_tie)
    tokenizer = target.tokenizer
    if tokenizer is None:
        raise ValueError(f"{target.name} has no tokenizer: give a directory that holds one")
    encoded = [encode(target, prompt) for prompt in prompts]
    longest, limit = max(map(len, encoded)), target.lm.max_positions
    if longest + text_length > limit:
        raise ValueError(
            f"prompt of {longest} tokens and --text-length {text_length} exceed the limit of {limit} tokens; lower "
            "--text-length"
        )

    def complete(temperature: float, first_seed: int) -> list[Completion]:
        requests = [
            CompletionRequest(prompt=text, max_tokens=text_length, temperature=temperature, seed=first_seed + index)
            for index, text in enumerate(prompts)
        ]
        return client.complete_all(model, requests, max_concurrency=batch_size)

    on_progress("the server's greedy completions", 0)
    completions = complete(0.0, seed)
    on_progress("the reference's greedy completions", 0)
    greedy = compare_greedy(target, encoded, completions, max_tokens=text_length, near_tie=near_tie)
    counts = [(one.num_prompt_tokens, len(own)) for one, own in zip(completions, encoded, strict=True)]
    counted = all(count is not None for count, _ in counts)
    vocab_size = target.lm.vocab_size
    source = choose_source(completions, tokenizer=tokenizer, vocab_size=vocab_size)
    recovery = TokenRecovery(source=source, tokenizer=tokenizer, eos=target.eos, vocab_size=vocab_size)
    samples = SampledCompletions(target, recovery, seed=seed)
    min_rounds = max(-(-num_tokens // (len(prompts) * text_length)), -(-MIN_SEQUENCES // len(prompts)))
    first: list[Completion] = []
    for index in range(MAX_ROUNDS_FACTOR * min_rounds):
        on_progress("sampled completions", samples.num_tokens)
        completions = complete(1.0, seed + 1000 * index)
        first = first or completions
        for prompt, completion in zip(encoded, completions, strict=True):
            samples.add(prompt, completion)
        if source is TokenSource.TEXT:
            samples.add_reference(encoded, text_length, index)
        if samples.has_enough(num_tokens) or samples.is_unreadable:
            break
    on_progress("the same seeds again", samples.num_tokens)
    equal = sum(one.text == other.text for one, other in zip(first, complete(1.0, seed), strict=True))
    return ServerAudit(
        model=model,
        extra_fields=dict(client.extra_fields),
        num_prompts=len(prompts),
        miscounted_prompts=tuple(i for i, (count, own) in enumerate(counts) if count != own) if counted else None,
        greedy=greedy,
        seed_repeats=SeedRepeats(num_sequences=len(first), num_equal=equal),
        recovery=samples.recovery_summary(),
        goodness_of_fit=samples.goodness_of_fit(),
        logprobs=samples.logprob_error(),
    )


def check_counts(*, num_tokens: int, text_length: int, batch_size: int, near_tie: float) -> None:
    """Raise ValueError for numbers that an audit cannot use."""
    check_lengths(num_tokens=num_tokens, text_length=text_length)
    if batch_size < 1:
        raise ValueError(f"--batch-size {batch_size}: give at least 1")
    if not near_tie >= 0:
        raise ValueError(f"--near-tie {near_tie:g}: give a number of nats from 0")
