"""Indices of token sequences by the kernel library: core/token_index.py in constant time for each token.

R rows, D tokens of a draft.
"""

import ctypes
import weakref
from array import array
from collections.abc import Callable, Sequence
from ctypes import Structure, byref, c_double, c_int64, c_void_p
from functools import cache
from itertools import chain
from typing import final

from paceline.core.host_draft import NO_TOKENS, HostDraft
from paceline.core.token_index import MAX_OCCURRENCES, Occurrence, SuffixOptions, TokenIndex
from paceline.kernels.cpu.instruction_set import current_set, load_kernel


@final
class KernelTokenIndex(TokenIndex):
    """Takes some 30 bytes for each token. Raises KernelError if the library cannot be built."""

    def __init__(self) -> None:
        self.isa = current_set()
        kernel = load_kernel(self.isa)
        self.address: int = _call(self.isa, "new_token_index", c_void_p)()
        self._places = array("q", bytes(16 * MAX_OCCURRENCES))
        weakref.finalize(self, kernel.paceline_free_token_index, c_void_p(self.address)).atexit = False

    def append(self, tokens: Sequence[int]) -> None:
        """See TokenIndex."""
        given = array("q", tokens)
        self._do("index_append", c_void_p(given.buffer_info()[0]), c_int64(len(given)))

    def end_sequence(self) -> None:
        """See TokenIndex."""
        self._do("index_end_sequence")

    def clear(self) -> None:
        """See TokenIndex."""
        self._do("index_clear")

    def keep(self, limit: int, sequences: int | None = None) -> None:
        """See TokenIndex."""
        self._do("index_keep", c_int64(limit), c_int64(-1 if sequences is None else sequences))

    @property
    def size(self) -> int:
        """See TokenIndex."""
        return _call(self.isa, "index_size", c_int64)(c_void_p(self.address))

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return _call(self.isa, "index_bytes", c_int64)(c_void_p(self.address))

    def find(
        self, context: Sequence[int], *, min_match: int, max_match: int, limit: int, skip_end: bool = False
    ) -> list[Occurrence]:
        """See TokenIndex."""
        given, places = array("q", context[-max_match:]), self._places
        at, _ = places.buffer_info()
        count = _call(self.isa, "index_find", c_int64)(
            c_void_p(self.address),
            c_void_p(given.buffer_info()[0]),
            *(c_int64(one) for one in (len(given), min_match, max_match, limit, int(skip_end))),
            c_void_p(at),
            c_void_p(at + 8 * MAX_OCCURRENCES),
        )
        pairs = zip(places[:count], places[MAX_OCCURRENCES : MAX_OCCURRENCES + count], strict=True)
        return [Occurrence(position=position, length=length) for position, length in pairs]

    def _do(self, name: str, *arguments: object) -> None:
        _call(self.isa, name)(c_void_p(self.address), *arguments)


class _Options(Structure):
    __slots__ = ()
    _fields_ = [
        *((name, c_int64) for name in ("min_match", "max_match", "branches", "max_depth")),
        *((name, c_double) for name in ("factor", "offset", "min_prob")),
    ]


class _Rows(Structure):
    __slots__ = ()
    _fields_ = [
        *((name, c_int64) for name in ("rows", "width")),
        *((name, c_void_p) for name in ("own", "store", "added", "num_added", "room", "tokens", "parents", "probs")),
        *((name, c_void_p) for name in ("count", "match")),
    ]


@final
class KernelSuffixDrafts:
    """Drafts for up to ``rows`` rows in one call, of at most ``width`` tokens each."""

    def __init__(self, *, rows: int, width: int, options: SuffixOptions) -> None:
        self._width, self._isa = width, current_set()
        self._draft = _call(self._isa, "suffix_draft")
        self._options = _Options(
            **{name: getattr(options, name) for name in ("min_match", "max_match", "factor", "offset", "min_prob")},
            branches=int(options.branches),
            max_depth=options.max_depth or 0,
        )
        self._branches = options.branches
        one = ("own", "store", "num_added", "room", "count", "match")
        self._arrays = {name: array("q", bytes(8 * rows)) for name in one}
        self._arrays |= {name: array("q", bytes(8 * rows * width)) for name in ("tokens", "parents")}
        self._probs = array("d", bytes(8 * rows * width))
        places = {name: values.buffer_info()[0] for name, values in self._arrays.items()}
        self._rows = _Rows(width=width, probs=self._probs.buffer_info()[0], **places)

    def draft(
        self,
        own: Sequence[TokenIndex],
        stores: Sequence[TokenIndex | None],
        added: Sequence[Sequence[int]],
        room: Sequence[int],
    ) -> list[HostDraft]:
        """Append ``added`` to each row's ``own`` index, then draft at most ``room`` tokens for each.

        As core/token_index.draft_from_plain.
        """
        arrays, count = self._arrays, len(own)
        arrays["own"][:count] = array("q", [_address(one) for one in own])
        arrays["store"][:count] = array("q", [0 if one is None else _address(one) for one in stores])
        arrays["num_added"][:count] = array("q", map(len, added))
        arrays["room"][:count] = array("q", room)
        flat = array("q", chain.from_iterable(added))
        self._rows.rows, self._rows.added = count, flat.buffer_info()[0]
        self._draft(byref(self._rows), byref(self._options))
        tokens, above, probs, drafts = arrays["tokens"], arrays["parents"], self._probs, list[HostDraft]()
        for row, (num, match) in enumerate(zip(arrays["count"][:count], arrays["match"][:count], strict=True)):
            if not num:
                drafts.append(NO_TOKENS)
                continue
            first, last = row * self._width, row * self._width + num
            parents = above[first:last].tolist() if self._branches else None
            drafts.append(HostDraft(tokens[first:last].tolist(), parents, match, probs[first:last].tolist()))
        return drafts


def _address(index: TokenIndex) -> int:
    assert isinstance(index, KernelTokenIndex)
    return index.address


@cache
def _call(isa: str, name: str, result: type[ctypes._SimpleCData] | None = None) -> Callable[..., int]:  # pyright: ignore[reportPrivateUsage]
    function = getattr(load_kernel(isa), f"paceline_{name}")
    function.restype = result
    return function
