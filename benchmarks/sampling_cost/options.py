"""Sampling options, and steps of a decoder that can take any of them and be rewound. Times nothing.

R rows, k draft tokens, V vocabulary.
"""

from dataclasses import dataclass, field, replace
from typing import final

import torch

from benchmarks.decoders import make_decoder, start_rows, step
from benchmarks.study import (
    check_counts,
    plural,
)
from paceline.bench.suites import PYTHON_PROMPTS
from paceline.core.request import Processing, Request
from paceline.core.sampling import FilterOrder, Sampling
from paceline.drafters.model import ModelDrafter
from paceline.models.base import LM
from paceline.text.tokenizer import Tokenizer

PROMPT, CONTEXT = 48, 160  # tokens of a row's prompt, and of all before the step
TEMPERATURE = 0.8
NUM_BIASED, NUM_WORDS = 64, 32
GREEDY, SAMPLED = "greedy", f"T = {TEMPERATURE}"  # steps that options are compared with
ALL = "all of these"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of every row, and the step without it."""

    name: str
    reference: str | None  # its name; None for the references themselves
    sampling: Sampling = field(default_factory=Sampling)
    processing: Processing = field(default_factory=Processing)
    waits: bool = False  # no stop token in this step
    logprobs: int | None = None
    common: bool = True  # of everyday use


def options_for(vocab_size: int) -> list[Option]:
    """References first; each option alone against the reference that has as much else, and the common ones together."""
    sampled = Sampling(temperature=TEMPERATURE)
    distant = [number * (vocab_size // (NUM_BIASED + 1)) for number in range(1, NUM_BIASED + 1)]
    bias = tuple(((token,), 0.5) for token in distant)
    words = tuple(((token, token - 1, token // 2), -float("inf")) for token in distant[:NUM_WORDS])
    penalties = Processing(repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.1)

    def process(name: str, processing: Processing, *, common: bool = True) -> Option:
        return Option(name=name, reference=GREEDY, processing=processing, common=common)

    def sample(name: str, *, common: bool = True, **given: float | FilterOrder) -> Option:
        return Option(name=name, reference=SAMPLED, sampling=replace(sampled, **given), common=common)

    return [
        Option(name=GREEDY, reference=None),
        Option(name=SAMPLED, reference=None, sampling=sampled),
        Option(name="temperature", reference=GREEDY, sampling=sampled),
        sample("top_k=50", top_k=50),
        sample("top_p=0.95", top_p=0.95),
        sample("min_p=0.05", min_p=0.05),
        sample("min_p=0.05, as vLLM", min_p=0.05, order=FilterOrder.VLLM),
        process("repetition_penalty", Processing(repetition_penalty=1.1)),
        process("frequency_penalty", Processing(frequency_penalty=0.2)),
        process("presence_penalty", Processing(presence_penalty=0.1)),
        process(f"logit_bias of {NUM_BIASED}", Processing(bias=bias)),
        Option(name="min_tokens", reference=GREEDY, waits=True),
        Option(name="logprobs=5", reference=GREEDY, logprobs=5),
        Option(name="logprobs=5, sampled", reference=SAMPLED, sampling=sampled, logprobs=5),
        Option(
            name=ALL,
            reference=GREEDY,
            sampling=replace(sampled, top_k=50, top_p=0.95, min_p=0.05),
            processing=replace(penalties, bias=bias),
            waits=True,
            logprobs=5,
        ),
        process("allowed tokens", Processing(allowed=tuple(range(vocab_size // 2))), common=False),
        process(f"bad words, {NUM_WORDS}", Processing(bias=words), common=False),
        process("no_repeat_ngram=3", Processing(no_repeat_ngram=3), common=False),
        sample("typical_p=0.9", typical_p=0.9, common=False),
        sample("epsilon_cutoff", epsilon_cutoff=3e-4, common=False),
        sample("eta_cutoff", eta_cutoff=2e-3, common=False),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A step that all options are timed in. Raises ValueError for counts that leave no step."""

    num_rows: int
    num_draft_tokens: int

    def __post_init__(self) -> None:
        check_counts(rows=self.num_rows)
        check_counts(0, k=self.num_draft_tokens)

    @property
    def name(self) -> str:
        return f"{plural(self.num_rows)}, {f'k = {self.num_draft_tokens}' if self.num_draft_tokens else 'plain'}"


@final
class Steps:
    """A decoder that is before the same step whatever its rows ask for; the tokens are the target's own."""

    def __init__(self, cell: Cell, *, target: LM, draft: LM, tokenizer: Tokenizer, itemsize: int) -> None:
        depth = cell.num_draft_tokens
        self._room = 2 * (depth + 1)  # no row ends in the step
        self.options = {option.name: option for option in options_for(target.vocab_size)}
        self.vocab_size = target.vocab_size
        self.logits_bytes = cell.num_rows * (2 * depth + 1) * self.vocab_size * itemsize  # the draft's included
        self._draft = ModelDrafter(lm=draft) if depth else None
        self._decoder = make_decoder(
            target,
            drafter=self._draft,
            num_draft_tokens=depth,
            rows=cell.num_rows,
            max_length=CONTEXT + self._room + 2,
        )
        encoded = [tokenizer.encode(PYTHON_PROMPTS[row % len(PYTHON_PROMPTS)]) for row in range(cell.num_rows)]
        prompts = [(tokens * (PROMPT // len(tokens) + 1))[:PROMPT] for tokens in encoded]
        requests = [Request(tokens=tokens, max_tokens=CONTEXT - PROMPT + 1) for tokens in prompts]
        self._decoder.admit(requests, range(cell.num_rows))
        while bool(self._decoder.batch.active.any()):
            self._decoder.step()
        self._sequences: list[list[int]] = self._decoder.batch.tokens[:, :CONTEXT].tolist()

    @torch.inference_mode()
    def rewind(self, name: str) -> None:
        """To before the step, its rows asking for the option ``name``: untimed."""
        option, batch = self.options[name], self._decoder.batch
        requests = [
            Request(
                tokens=tokens,
                max_tokens=self._room,
                sampling=replace(option.sampling, seed=row),
                processing=option.processing,
                stop_tokens=[0, 1] if option.waits else [],
                min_tokens=self._room if option.waits else 0,
                logprobs=option.logprobs,
            )
            for row, tokens in enumerate(self._sequences)
        ]
        start_rows(batch, requests)
        written = batch.tokens[:, PROMPT:CONTEXT]
        batch.processing.count(written, torch.ones_like(written, dtype=torch.bool))
        self._decoder.cache.truncate(CONTEXT - 1)  # all but the root
        if self._draft is not None:
            self._draft.cache.truncate(CONTEXT - 2)  # as after a draft that was accepted whole

    def step(self) -> None:
        """One whole step, and what the host reads of it."""
        step(self._decoder)
