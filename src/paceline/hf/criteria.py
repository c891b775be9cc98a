"""transformers' stopping criteria, row by row. Knows nothing of models or decoding.

N rows, T tokens of their padded prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, StopStringCriteria
from transformers.generation.stopping_criteria import ConfidenceCriteria, EosTokenCriteria, MaxLengthCriteria

from paceline.api.completion import Criterion

StoppingCriterion: TypeAlias = Callable[[Any, Any], object]  # input_ids and scores: whether each row ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """The stopping criteria of a call, apart from those that options say better.

    As in transformers, a criterion of the caller's takes the place of the one of its type that options stand for.
    """

    called: tuple[StoppingCriterion, ...]
    max_length: int | None  # of padded prompt and continuation, in place of the options'. None: not given
    eos: tuple[int, ...] | None  # in place of the options'. None: not given
    pads: bool  # whether rows that ended are filled up by reason of a criterion


def read_criteria(given: object, *, stop_strings: Sequence[str], tokenizer: object) -> Criteria:
    """The caller's criteria, and one for ``stop_strings``. Raises ValueError for what is none, or needs scores."""
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
            found = "none is given" if tokenizer is None else f"{type(tokenizer).__name__} is none of transformers"
            raise ValueError(
                f"stop_strings={list(stop_strings)} need the model's tokenizer, and {found}: give tokenizer"
            )
        if not any(type(criterion) is StopStringCriteria for criterion in criteria):
            criteria.append(StopStringCriteria(tokenizer, list(stop_strings)))
    replaced = (MaxLengthCriteria, EosTokenCriteria)
    lengths = [criterion.max_length for criterion in criteria if type(criterion) is MaxLengthCriteria]
    ends = [criterion for criterion in criteria if type(criterion) is EosTokenCriteria]
    return Criteria(
        called=tuple(criterion for criterion in criteria if type(criterion) not in replaced),
        max_length=min(lengths, default=None),
        eos=tuple(int(token) for one in ends for token in one.eos_token_id) if ends else None,
        pads=any(isinstance(criterion, EosTokenCriteria) for criterion in criteria),
    )


@final
class Endings:
    """Where rows end by criteria, each called after every token with the row's padded ids [1, T + t] and no scores.

    Where nothing fills up rows that ended (``pads``), transformers lets them go on until the last has ended, and so
    does this: ``cut`` is where all end. ``failure`` is what a criterion raised.
    """

    def __init__(
        self, *, called: Sequence[StoppingCriterion], padded: Tensor, max_tokens: int, pads: bool, device: torch.device
    ) -> None:
        self.failure: Exception | None = None
        self._called, self._padded, self._max_tokens, self._pads = called, padded, max_tokens, pads
        self._device = device
        self._ended: dict[int, int] = {}  # how many tokens each row had

    @property
    def cut(self) -> int | None:
        """New tokens of every row; None where rows end on their own."""
        return max(self._ended.values(), default=self._max_tokens) if self._called and not self._pads else None

    def criterion(self, row: int) -> Criterion | None:
        """What the engine asks after every token of ``row``; None where nobody has to be asked."""
        if not self._called:
            return None
        num_prompt = self._padded.shape[1]
        ids = torch.zeros(1, num_prompt + self._max_tokens, dtype=torch.int64, device=self._device)
        ids[0, :num_prompt] = self._padded[row]

        def ends(tokens: Sequence[int]) -> bool:
            count = len(tokens)
            ids[0, num_prompt + count - 1] = tokens[-1]
            if row not in self._ended and (self._ask(ids[:, : num_prompt + count], row) or count == self._max_tokens):
                self._ended[row] = count
            if self._pads:
                return row in self._ended
            return len(self._ended) == len(self._padded) and count >= max(self._ended.values())

        return ends

    def _ask(self, ids: Tensor, row: int) -> bool:
        """Whether any criterion ends the row; all are asked, because they may count."""
        answers = [False]
        for criterion in self._called:
            try:
                answers.append(_answer(criterion(ids, None)))
            except Exception as error:
                error.add_note(f"row {row}: raised by {_name(criterion)}, which was called with scores=None")
                self.failure = error
                raise
        return any(answers)


def _answer(value: object) -> bool:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"an answer of shape {list(value.shape)} for one row: give a bool, or a tensor of one element")
    return bool(value)


def _name(criterion: object) -> str:
    return type(criterion).__name__
