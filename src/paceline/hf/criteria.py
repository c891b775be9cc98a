"""Applies stopping criteria of transformers to each row separately.

N rows, T tokens of their padded prompts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, StopStringCriteria
from transformers.generation.stopping_criteria import (
    ConfidenceCriteria,
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
)

from paceline.api.completion import Criterion

StoppingCriterion: TypeAlias = Callable[[Any, Any], object]  # (input_ids, scores) to whether each row stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """The stopping criteria of a call; those that sampling parameters cover are converted to these.

    As in transformers, a criterion from the caller replaces the one of its type that an option would create.
    """

    callables: tuple[StoppingCriterion, ...]
    max_length: int | None  # of padded prompt and output; replaces the option's. None: not given
    eos: tuple[int, ...] | None  # replaces the option's. None: not given
    deadline: float | None  # by time.time(); replaces the option's. None: not given
    pads: bool  # whether a criterion makes transformers pad rows that have stopped


def read_criteria(given: object, *, stop_strings: Sequence[str], tokenizer: object) -> Criteria:
    """The caller's criteria, and one for ``stop_strings``. Raises ValueError for invalid criteria."""
    criteria: list[Any] = []
    if given is not None:
        if not isinstance(given, Sequence):
            raise ValueError(f"stopping_criteria of type {type(given).__name__}: give a list")
        criteria += given
    for index, criterion in enumerate(criteria):
        if isinstance(criterion, ConfidenceCriteria) or not callable(criterion):
            reason = "needs scores" if callable(criterion) else "cannot be called"
            raise ValueError(f"stopping_criteria[{index}], {_name(criterion)}, {reason}: leave it out")
    if stop_strings:
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            found = (
                "none is given" if tokenizer is None else f"{type(tokenizer).__name__} is not a transformers tokenizer"
            )
            raise ValueError(
                f"stop_strings={list(stop_strings)} need the model's tokenizer, and {found}: give tokenizer"
            )
        if not any(type(criterion) is StopStringCriteria for criterion in criteria):
            criteria.append(StopStringCriteria(tokenizer, list(stop_strings)))
    replaced = (MaxLengthCriteria, EosTokenCriteria, MaxTimeCriteria)
    lengths = [criterion.max_length for criterion in criteria if type(criterion) is MaxLengthCriteria]
    deadlines = [one.initial_timestamp + one.max_time for one in criteria if type(one) is MaxTimeCriteria]
    ends = [criterion for criterion in criteria if type(criterion) is EosTokenCriteria]
    return Criteria(
        callables=tuple(criterion for criterion in criteria if type(criterion) not in replaced),
        max_length=min(lengths, default=None),
        eos=tuple(int(token) for one in ends for token in one.eos_token_id if token >= 0) if ends else None,
        deadline=min(deadlines, default=None),
        pads=any(isinstance(criterion, EosTokenCriteria) for criterion in criteria),
    )


@final
class StoppingState:
    """Evaluates the criteria after every token, with the row's padded ids [1, T + t] and no scores.

    Unless stopped rows are padded (``pads``), transformers continues them until the last row stops, and so does this:
    ``common_length`` is where all stop. After ``deadline`` (by time.time(); None: never) a row stops for good at its
    next token, and ``expired`` is set. ``failure`` is an exception that a criterion raised.
    """

    def __init__(
        self,
        *,
        callables: Sequence[StoppingCriterion],
        padded: Tensor,
        max_tokens: int,
        pads: bool,
        deadline: float | None,
        device: torch.device,
    ) -> None:
        self.expired = False
        self._deadline = deadline
        self.failure: Exception | None = None
        self._callables, self._padded, self._max_tokens, self._pads = callables, padded, max_tokens, pads
        self._device = device
        self._lengths: dict[int, int] = {}  # new tokens of each row that has stopped

    @property
    def common_length(self) -> int | None:
        """New tokens of every row; None where each row stops separately."""
        if self._pads or self.expired or not self._callables:
            return None
        return max(self._lengths.values(), default=self._max_tokens)

    def criterion(self, row: int) -> Criterion | None:
        """The criterion that the engine evaluates after every token of ``row``; None where there is none."""
        if not self._callables and self._deadline is None:
            return None
        num_prompt = self._padded.shape[1]
        ids = torch.zeros(1, num_prompt + self._max_tokens, dtype=torch.int64, device=self._device)
        ids[0, :num_prompt] = self._padded[row]

        def stops(tokens: Sequence[int]) -> bool:
            count = len(tokens)
            ids[0, num_prompt + count - 1] = tokens[-1]
            if row not in self._lengths and (
                self._evaluate(ids[:, : num_prompt + count], row) or count == self._max_tokens
            ):
                self._lengths[row] = count
            if self._deadline is not None and time.time() > self._deadline:
                self.expired = True
                return True
            if self._pads:
                return row in self._lengths
            return len(self._lengths) == len(self._padded) and count >= max(self._lengths.values())

        return stops

    def _evaluate(self, ids: Tensor, row: int) -> bool:
        """Whether any criterion stops the row. All are called, because they may count their calls."""
        results = [False]
        for criterion in self._callables:
            try:
                results.append(_as_bool(criterion(ids, None)))
            except Exception as error:
                error.add_note(f"row {row}: raised by {_name(criterion)}, which was called with scores=None")
                self.failure = error
                raise
        return any(results)


def _as_bool(value: object) -> bool:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"a result of shape {list(value.shape)} for one row: give a bool, or a tensor of one element")
    return bool(value)


def _name(criterion: object) -> str:
    return type(criterion).__name__
