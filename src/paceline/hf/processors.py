"""Applies logits processors of transformers to each row separately, as constraints."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, final

from torch import Tensor
from transformers.generation import logits_process as known

from paceline.api.generation_fields import Values
from paceline.constraints.external_processors import TransformersConstraint, constraint_of, name_of
from paceline.core.constraint import Constraint

# Where an option would create a processor of the same type, transformers puts the caller's in its position.
BY_OPTION: dict[type, str] = {
    known.SequenceBiasLogitsProcessor: "sequence_bias",
    known.RepetitionPenaltyLogitsProcessor: "repetition_penalty",
    known.NoRepeatNGramLogitsProcessor: "no_repeat_ngram_size",
    known.NoBadWordsLogitsProcessor: "bad_words_ids",
    known.MinLengthLogitsProcessor: "min_length",
    known.MinNewTokensLengthLogitsProcessor: "min_new_tokens",
    known.SuppressTokensLogitsProcessor: "suppress_tokens",
    known.SuppressTokensAtBeginLogitsProcessor: "begin_suppress_tokens",
}
NEUTRAL: dict[str, tuple[object, ...]] = {"repetition_penalty": (1.0,), "no_repeat_ngram_size": (0,)}
NEUTRAL |= {"min_length": (0,), "min_new_tokens": (0,)}
# These keep a state of the sequence they were last called with; a draft may be rejected.
STATEFUL = (
    known.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    known.SynthIDTextWatermarkLogitsProcessor,
)
# These identify rows by their index in the batch; here they are called with one row.
BY_ROW_INDEX = (
    known.PrefixConstrainedLogitsProcessor,
    known.EncoderNoRepeatNGramLogitsProcessor,
    known.EncoderRepetitionPenaltyLogitsProcessor,
)


@final
class Processors:
    """The caller's processors, and the one that ``prefix_allowed_tokens_fn`` makes. ``failure`` is an exception that
    one raised.

    Raises ValueError for processors that cannot be called with drafted tokens, or with one row.
    """

    def __init__(self, given: Iterable[object] | None, allowed: object, *, values: Values) -> None:
        self.failure: Exception | None = None
        self._given: list[Any] = list(given or ())
        if allowed is not None and not callable(allowed):
            raise ValueError(f"prefix_allowed_tokens_fn of type {type(allowed).__name__}: give a function")
        self._allowed: Callable[..., Any] | None = allowed
        for index, processor in enumerate(self._given):
            try:
                rule = constraint_of(processor)
            except ValueError as error:
                raise ValueError(f"logits_processor[{index}]: {error}") from error
            if not isinstance(rule, TransformersConstraint):
                raise ValueError(
                    f"logits_processor[{index}], {name_of(processor)}: give a processor of (input_ids, scores)"
                )
            if isinstance(processor, STATEFUL):
                raise ValueError(
                    f"logits_processor[{index}], {name_of(processor)}, keeps a state of the sequence it was last "
                    "called with, and drafts may be rejected: leave it out"
                )
            option = BY_OPTION.get(type(processor))
            if option is not None and values.get(option) not in (None, *NEUTRAL.get(option, ())):
                raise ValueError(
                    f"logits_processor[{index}], {name_of(processor)}, and {option}={values[option]!r} do the same: "
                    "give one of them"
                )

    def check(self, num_rows: int) -> None:
        """Raise ValueError where a processor identifies rows by their index and there are several."""
        for index, processor in enumerate(self._given):
            if num_rows > 1 and isinstance(processor, BY_ROW_INDEX):
                raise ValueError(
                    f"logits_processor[{index}], {name_of(processor)}, identifies rows by their index, and is called "
                    f"with one at a time: give one prompt, not {num_rows} rows"
                )

    def constraints(self, row: int, padded: Sequence[int]) -> tuple[Constraint, ...]:
        """The constraints of ``row``; processors see its prompt as ``padded``."""
        own = [] if self._allowed is None else [self._constrained(self._allowed, row)]
        return tuple(
            TransformersConstraint(partial(self._call, processor, row), shown=padded, name=name_of(processor))
            for processor in (*own, *self._given)
        )

    def _call(self, processor: Callable[..., Any], row: int, input_ids: Tensor, scores: Tensor) -> object:
        try:
            return processor(input_ids, scores)
        except Exception as error:
            if self.failure is None:
                error.add_note(f"row {row}: raised by {name_of(processor)}")
                self.failure = error
            raise

    @staticmethod
    def _constrained(allowed: Callable[..., Any], row: int) -> known.PrefixConstrainedLogitsProcessor:
        return known.PrefixConstrainedLogitsProcessor(lambda _, sentence: allowed(row, sentence), 1)
