"""Accumulates a server's sampled completions and tests their tokens against the reference model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.api import Loaded, Result, SamplingParams, generate
from paceline.audit.client import Completion
from paceline.audit.goodness_of_fit import GoodnessOfFit, GoodnessOfFitTest
from paceline.audit.target_probs import next_token_probs
from paceline.audit.token_recovery import TokenRecovery, TokenSource
from paceline.audit.two_sample import MIN_SEQUENCES, SequenceSample, two_sample_test

MAX_DROPPED = 0.9  # share of completions whose token ids cannot be recovered
REFERENCE_SEED_OFFSET = 500_000  # between the seeds of the server's completions and the reference's


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobError:
    """Absolute differences, in nats, between ``count`` logprobs from the server and the reference's."""

    count: int
    mean: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySummary:
    """Where the token ids of the sampled completions come from."""

    source: str
    num_sequences: int
    num_dropped: int  # completions whose token ids cannot be recovered
    num_truncated: int  # completions that are tested up to a token that cannot be recovered


@final
class SampledCompletions:
    """Recovers the token ids of completions and accumulates the statistics of the tests."""

    def __init__(self, target: Loaded, recovery: TokenRecovery, *, seed: int) -> None:
        self._target, self._recovery, self._seed = target, recovery, seed
        self._test = GoodnessOfFitTest(seed=seed)
        self._sample, self._reference = SequenceSample(seed=seed), SequenceSample(seed=seed + 1)
        self._num_sequences, self._num_dropped, self._num_truncated = 0, 0, 0
        self._logprob_errors: list[float] = []
        self.num_tokens = 0

    def add(self, prompt: Sequence[int], completion: Completion) -> None:
        """One completion of the server."""
        self._num_sequences += 1
        recovered = self._recovery.recover(prompt, completion)
        self._num_dropped += recovered is None
        if recovered is None or not recovered.token_ids:
            return
        self._num_truncated += recovered.truncated
        self.num_tokens += len(recovered.token_ids)
        probs, tokens = self._probs(prompt, recovered.token_ids), torch.tensor(recovered.token_ids)
        conditional = self._recovery.conditional_probs(probs)
        if self._recovery.source is TokenSource.TEXT:
            self._sample.add(conditional, tokens)
            return
        self._test.add(conditional, tokens)
        own = probs.gather(-1, tokens[:, None])[:, 0].log().tolist()
        self._logprob_errors += [
            abs(expected - reported)
            for token, expected, reported in zip(recovered.token_ids, own, completion.logprobs or (), strict=False)
            if reported is not None and token not in self._target.eos  # it may be another end-of-text token
        ]

    def add_reference(self, prompts: Sequence[Sequence[int]], text_length: int, index: int) -> None:
        """Completions of the reference itself, recovered from their text alone as the server's are."""
        first_seed = self._seed + REFERENCE_SEED_OFFSET + 1000 * index
        params = [
            SamplingParams(temperature=1.0, max_tokens=text_length, seed=first_seed + prompt)
            for prompt in range(len(prompts))
        ]
        results = generate(self._target, [list(prompt) for prompt in prompts], params)
        for prompt, result in zip(prompts, results, strict=True):
            recovered = self._recovery.recover(prompt, _as_completion(result))
            if recovered is not None and recovered.token_ids:
                probs = self._recovery.conditional_probs(self._probs(prompt, recovered.token_ids))
                self._reference.add(probs, torch.tensor(recovered.token_ids))

    def has_enough(self, num_tokens: int) -> bool:
        """Whether that many tokens have been added, and enough sequences for a two-sample test."""
        fewest = min(self._sample.num_sequences, self._reference.num_sequences)
        too_few = self._recovery.source is TokenSource.TEXT and fewest < MIN_SEQUENCES
        return self.num_tokens >= num_tokens and not too_few

    @property
    def is_unreadable(self) -> bool:
        """Whether the token ids of nearly no completion can be recovered."""
        return self._num_sequences >= MIN_SEQUENCES and self._num_dropped > MAX_DROPPED * self._num_sequences

    def goodness_of_fit(self) -> GoodnessOfFit:
        """Raises ValueError where there are too few tokens to test."""
        if self.num_tokens == 0 or self.is_unreadable or not self.has_enough(0):
            raise ValueError(
                f"the token ids of only {self._num_sequences - self._num_dropped} of {self._num_sequences} sampled "
                "completions can be recovered: let the server return logprobs, take shorter texts by --text-length, "
                "or more by --num-tokens"
            )
        if self._recovery.source is TokenSource.TEXT:
            return two_sample_test(self._sample, self._reference)
        return self._test.result()

    def recovery_summary(self) -> RecoverySummary:
        return RecoverySummary(
            source=self._recovery.source.value,
            num_sequences=self._num_sequences,
            num_dropped=self._num_dropped,
            num_truncated=self._num_truncated,
        )

    def logprob_error(self) -> LogprobError | None:
        errors = self._logprob_errors
        return LogprobError(count=len(errors), mean=sum(errors) / len(errors), largest=max(errors)) if errors else None

    def _probs(self, prompt: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        return next_token_probs(self._target.lm, prompt, token_ids)


def _as_completion(result: Result) -> Completion:
    """The completion that a server without token ids would return for ``result``."""
    assert result.text is not None
    return Completion(text=result.text, stopped=result.finish_reason == "stop", num_tokens=len(result.token_ids))
