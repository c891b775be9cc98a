"""One request, as values: prompt, context, limits, sampling, logits processors, constraints."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from paceline.core.constraint import Constraint
from paceline.core.context import Context
from paceline.core.guidance import Guidance
from paceline.core.sampling import Sampling

MAX_STOP_TOKENS = 64
NEVER = -float("inf")
Biased: TypeAlias = tuple[tuple[int, ...], float]  # tokens in a row, and what the last one gains behind the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """One row's processors; the defaults do nothing.

    In the order in which they apply, which transformers and vLLM share:

    - ``bias``: (tokens, value) pairs; ``value`` is added to the logit of the last token wherever the others stand
      right before it. -inf bans; a pair of one token holds everywhere. Values for the same place add up.
    - ``allowed``: no other token; None: every one.
    - ``repetition_penalty``: logits of tokens in the prompt or the output are divided by it if positive and multiplied
      by it if not; above 0, 1 is off (1909.05858).
    - ``frequency_penalty``, ``presence_penalty``: subtracted from the logit of a token in the output, for each of its
      occurrences, and once.
    - ``no_repeat_ngram``: bans tokens that would repeat an n-gram of this length in the sequence; 0 is off.
    - ``late``: (token, count) pairs; the token is banned from the first ``count`` tokens of the output.

    If no token is left, token 0 has probability 1, as it is the argmax. Raises ValueError on values out of range.
    """

    bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    allowed: tuple[int, ...] | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int = 0
    late: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty={self.repetition_penalty}: give a finite number above 0 (1 is off)")
        for name in ("frequency_penalty", "presence_penalty"):
            if not abs(getattr(self, name)) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)}: give a finite number (0 is off)")
        if self.no_repeat_ngram < 0:
            raise ValueError(f"no_repeat_ngram={self.no_repeat_ngram}: give 0 (off) or a positive length")
        for tokens, value in self.bias:
            if not tokens or min(tokens) < 0:
                raise ValueError(f"bias of {list(tokens)}: give one token id or several, each at least 0")
            if not value < float("inf"):
                raise ValueError(f"bias of {list(tokens)}: {value}; give a finite number, or -inf to ban")
        if self.allowed is not None and (not self.allowed or min(self.allowed) < 0):
            raise ValueError(f"allowed={list(self.allowed)}: give at least one token id, or None for every one")
        if any(token < 0 or count < 0 for token, count in self.late):
            raise ValueError(f"late={list(self.late)}: give token ids and counts of at least 0")

    @property
    def everywhere(self) -> list[tuple[int, float]]:
        """Biases that depend on nothing."""
        return [(tokens[0], value) for tokens, value in self.bias if len(tokens) == 1]

    @property
    def sequences(self) -> list[Biased]:
        """Biases that depend on the tokens before."""
        return [(tokens, value) for tokens, value in self.bias if len(tokens) > 1]

    @property
    def is_biased(self) -> bool:
        """Whether some tokens have another logit everywhere."""
        return self.allowed is not None or any(len(tokens) == 1 for tokens, _ in self.bias)

    @property
    def counts(self) -> bool:
        """Whether it matters which tokens the sequence has."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to continue. Raises ValueError on an empty prompt or counts out of range."""

    tokens: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    processing: Processing = field(default_factory=Processing)
    guidance: Guidance | None = None
    constraints: tuple[Constraint, ...] = ()  # that the host applies
    context: Context | None = None  # inputs beside tokens, for a target that reads some
    stop_tokens: Sequence[int] = ()
    min_tokens: int = 0  # no stop token is chosen before this many
    logprobs: int | None = None  # of every token and of this many of the likeliest; None: not asked for
    keep_scores: bool = False  # whole logits and scores of every token beside its log-probabilities
    prompt_logprobs: int | None = None  # of every prompt token and of this many of the likeliest; None: not asked for
    num_draft_tokens: int | None = None  # at most this many per step for this row; None: as the plan says
    draft_store: str = ""  # whose outputs a drafter may copy from, and to which it adds this one's; "" for no one's
    drafts: bool = False  # whether steps report what was drafted for it
    drafters: frozenset[int] | None = None  # numbers of Drafter.origins that may draft for it; None: all

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("empty prompt: give at least one token (a beginning-of-text token will do)")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: give at least 1")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens}: give a count from 0 to max_tokens={self.max_tokens}")
        if self.logprobs is not None and self.logprobs < 0:
            raise ValueError(f"logprobs={self.logprobs}: give 0 (the chosen token's alone), a positive count, or None")
        if self.keep_scores and self.logprobs is None:
            raise ValueError("keep_scores without logprobs: give logprobs=0 or more")
        if self.prompt_logprobs is not None and self.prompt_logprobs < 0:
            raise ValueError(f"prompt_logprobs={self.prompt_logprobs}: give 0, a positive count, or None")
        if len(self.stop_tokens) > MAX_STOP_TOKENS:
            raise ValueError(
                f"{len(self.stop_tokens)} stop tokens: at most {MAX_STOP_TOKENS} are supported, the model's own among "
                "them; give fewer"
            )
        if self.num_draft_tokens is not None and self.num_draft_tokens < 0:
            raise ValueError(f"num_draft_tokens={self.num_draft_tokens}: give 0 or more")

    @property
    def lasts(self) -> bool:
        """Whether it certainly goes on until ``max_tokens``, as far as the step decides that."""
        ends = self.stop_tokens and self.min_tokens < self.max_tokens
        return not (ends or self.constraints)

    def drafted_by(self, origins: Collection[int]) -> "Request":
        """As a plan sees it whose drafters have these origins: without drafts where none of them may draft for it."""
        excluded = self.drafters is not None and self.drafters.isdisjoint(origins)
        return replace(self, num_draft_tokens=0) if excluded else self

    def source(self, name: str | None) -> Sequence[int]:
        """The tokens that the output may copy: those of the context's input ``name`` (None: of the prompt)."""
        if name is None:
            return self.tokens
        return [] if self.context is None else self.context.token_ids(name)

    @property
    def processors(self) -> Processing:
        """``processing``, and stop tokens that wait for ``min_tokens``."""
        if not self.min_tokens or not self.stop_tokens:
            return self.processing
        waiting = tuple((token, self.min_tokens) for token in self.stop_tokens)
        return replace(self.processing, late=(*self.processing.late, *waiting))
