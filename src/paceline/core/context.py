"""Inputs beside tokens: what a request gives, and what an LM reads.

Features of audio or of images, token ids for an encoder, embeddings in the place of the first tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from paceline.core.host import integers


@final
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Context:
    """Inputs of one request beside its tokens, by name. Contexts of equal tensors are equal; do not change them."""

    inputs: Mapping[str, Tensor]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        if self is other:
            return True
        if self.inputs.keys() != other.inputs.keys():
            return False
        return all(_equal(tensor, other.inputs[name]) for name, tensor in self.inputs.items())

    def __hash__(self) -> int:
        return hash(frozenset((name, tensor.shape) for name, tensor in self.inputs.items()))

    def token_ids(self, name: str) -> list[int]:
        """Those of an input, on the host; none where something else was given in its place."""
        return integers(self.inputs[name]) if name in self.inputs else []


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInput:
    """What an LM reads as one input: a tensor of at least ``min_shape`` and at most ``max_shape``.

    ``instead`` is what may be given in its place, and the name of that.
    """

    min_shape: tuple[int, ...]
    max_shape: tuple[int, ...]
    vocab_size: int | None = None  # of token ids; None: the input is floating-point numbers
    is_source: bool = False  # an encoder reads it: what the output is made of, where others have a prompt
    other_vocab: bool = False  # its token ids are not those of the output
    instead: "tuple[str, ContextInput] | None" = None

    def __str__(self) -> str:
        sizes = (
            str(most) if least == most else f"{least}..{most}"
            for least, most in zip(self.min_shape, self.max_shape, strict=True)
        )
        kind = "floating-point numbers" if self.vocab_size is None else f"token ids 0..{self.vocab_size - 1}"
        return f"{kind} [{', '.join(sizes)}]"

    def is_read_as(self, other: "ContextInput") -> bool:
        """Whether both read the same tensors; what may be given ``instead`` is not compared."""
        return replace(self, instead=None) == replace(other, instead=None)

    def accepts(self, tensor: Tensor) -> bool:
        """Whether it can be read as this input."""
        bounds = zip(self.min_shape, tensor.shape, self.max_shape, strict=False)
        if len(tensor.shape) != len(self.min_shape) or not all(least <= n <= most for least, n, most in bounds):
            return False
        if self.vocab_size is None:
            return tensor.is_floating_point()
        return tensor.dtype == torch.int64 and bool(((tensor >= 0) & (tensor < self.vocab_size)).all())


def check_context(inputs: Mapping[str, ContextInput], context: Context | None) -> None:
    """Raise ValueError unless ``context`` gives exactly the ``inputs`` that a target reads."""
    given: Mapping[str, Tensor] = {} if context is None else context.inputs
    inputs = dict(
        one.instead if one.instead is not None and name not in given and one.instead[0] in given else (name, one)
        for name, one in inputs.items()
    )
    if given.keys() != inputs.keys():
        names = ", ".join(f"'{name}'" for name in given) or "nothing"
        raise ValueError(
            f"the request's context gives {names}, and the target reads {describe(inputs)} beside tokens: give exactly "
            "these as Request.context"
        )
    for name, tensor in given.items():
        if not inputs[name].accepts(tensor):
            found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            if not tensor.is_floating_point() and tensor.numel():
                found += f" with values {int(tensor.min())}..{int(tensor.max())}"
            raise ValueError(f"context '{name}' is {found}, and the target reads {inputs[name]}")


def reads_source(inputs: Mapping[str, ContextInput]) -> bool:
    """Whether an encoder reads one of the ``inputs``."""
    return any(one.is_source for one in inputs.values())


def token_source(inputs: Mapping[str, ContextInput]) -> str | None:
    """The input of token ids that an encoder reads, which the output may copy; None where there is none."""
    copied = (name for name, one in inputs.items() if one.is_source and one.vocab_size is not None)
    return next((name for name in copied if not inputs[name].other_vocab), None)


def has_other_vocab(inputs: Mapping[str, ContextInput]) -> bool:
    """Whether an encoder reads tokens that are not those of the output."""
    return any(one.other_vocab for one in inputs.values())


def describe(inputs: Mapping[str, ContextInput]) -> str:
    """The inputs in words."""
    named = [(name, one, one.instead) for name, one in inputs.items()]
    each = (
        f"'{name}' ({one})" + (f" or '{instead[0]}' ({instead[1]})" if instead is not None else "")
        for name, one, instead in named
    )
    return ", ".join(each) or "nothing"


def _equal(first: Tensor, second: Tensor) -> bool:
    if first is second:
        return True
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(first, second.to(first.device))
