"""External logits processors as constraints: objects of transformers, and callables with vLLM's signature.

Called on the host once for every node of a draft, with that node's own prefix.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from paceline.core.constraint import Constraint, Processor

_REQUIRED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@final
class TransformersConstraint(Constraint):
    """Calls ``processor`` with input_ids [1, L] and scores [1, V], as transformers does for one row; it gives scores.

    ``shown`` (None: the prompt) replaces the prompt in input_ids, as with a padded prompt. ``name`` (None: its own) is
    used in messages.
    """

    def __init__(
        self, processor: Callable[..., Any], *, shown: Sequence[int] | None = None, name: str | None = None
    ) -> None:
        self._processor, self._shown = processor, shown
        self._name = name_of(processor) if name is None else name

    def begin(self, prompt: Sequence[int]) -> Processor:
        """Nothing is called yet."""
        shown = None if self._shown is None else torch.tensor(list(self._shown))
        return _InRows(self._processor, self._name, len(prompt), shown)


@final
class VllmConstraint(Constraint):
    """Calls ``processor`` with the ids of the prompt, those of the output so far, and logits [V]; it gives logits."""

    def __init__(self, processor: Callable[..., Any]) -> None:
        self._processor = processor

    def begin(self, prompt: Sequence[int]) -> Processor:
        """Nothing is called yet."""
        return _InLists(self._processor, len(prompt))


def constraint_of(processor: object) -> Constraint:
    """``processor`` as a constraint, by how many arguments it needs: two as in transformers, three as in vLLM.

    Raises ValueError, naming it, for anything else.
    """
    if not callable(processor):
        raise ValueError(f"{type(processor).__name__} cannot be called: give a logits processor")
    try:
        parameters = inspect.signature(processor).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name_of(processor)} does not say what arguments it takes: wrap it in a function") from error
    needed = [one for one in parameters if one.kind in _REQUIRED and one.default is inspect.Parameter.empty]
    if len(needed) == 2:
        return TransformersConstraint(processor)
    if len(needed) == 3:
        return VllmConstraint(processor)
    raise ValueError(
        f"{name_of(processor)} takes {len(needed)} arguments: give a logits processor of two, (input_ids, scores), or "
        "three, (prompt ids, output ids, logits)"
    )


def name_of(processor: object) -> str:
    """What messages call it."""
    return processor.__name__ if inspect.isroutine(processor) else type(processor).__name__


class _InRows(Processor):
    def __init__(self, processor: Callable[..., Any], name: str, num_prompt: int, shown: Tensor | None) -> None:
        self._processor, self._name, self._num_prompt, self._shown = processor, name, num_prompt, shown

    def process(self, tokens: Tensor, logits: Tensor) -> Tensor:
        if self._shown is not None:
            tokens = torch.cat((self._shown.to(tokens.device), tokens[self._num_prompt :]))
        given = self._processor(tokens[None], logits[None])
        if not isinstance(given, Tensor) or given.shape != (1, *logits.shape):
            form = list(given.shape) if isinstance(given, Tensor) else f"a {type(given).__name__}"
            raise ValueError(f"{self._name} gave {form}: scores [1, {len(logits)}] are wanted")
        return given[0]


class _InLists(Processor):
    def __init__(self, processor: Callable[..., Any], num_prompt: int) -> None:
        self._processor, self._num_prompt = processor, num_prompt

    def process(self, tokens: Tensor, logits: Tensor) -> Tensor:
        known = tokens.tolist()
        return self._processor(known[: self._num_prompt], known[self._num_prompt :], logits)
