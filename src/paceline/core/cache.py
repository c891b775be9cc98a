"""The key-value cache: fixed slots per row, made permanent by ``commit`` alone.

L layers, R rows, S slots (capacity), H key-value heads, E head size; B rows of a view, n nodes, D path depth.
Slots below a row's length are committed; those above are scratch, free to be overwritten, so rejecting needs no code.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from paceline.core.admission import Admission


class Workspace(Protocol):
    """Memory that a kernel works in, freed with its owner; one call at a time."""

    address: int


Zeros: TypeAlias = Callable[[tuple[int, ...], torch.dtype], Tensor]


class SlotCache:
    """Storage for R rows of S slots, allocated once. One additional row takes the writes that are discarded.

    ``zeros`` allocates zero tensors of a shape and precision on ``device`` (None: torch.zeros). ``row_state`` holds
    what an LM computes from a row's context, by name: tensors [R, ...] that the LM adds when it makes the storage.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        rows: int,
        capacity: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        zeros: Zeros | None = None,
    ) -> None:
        shape = (num_layers, rows + 1, capacity, num_kv_heads, head_dim)
        self.keys, self.values = (
            torch.zeros(shape, dtype=dtype, device=device) if zeros is None else zeros(shape, dtype) for _ in range(2)
        )
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.rows = rows
        self.capacity = capacity
        self.num_layers = num_layers
        self.row_state: dict[str, Tensor] = {}
        self.workspace: Workspace | None = None  # of the kernel that reads this cache: calls on it are sequential

    def part(self, start: int, rows: int) -> "SlotCache":
        """``rows`` rows from ``start`` on as a storage of their own, in the same memory.

        The row after them takes the writes that are discarded.
        """
        part = copy(self)
        part.keys, part.values = (store[:, start : start + rows + 1] for store in (self.keys, self.values))
        part.length, part.rows = self.length[start : start + rows], rows
        part.row_state = {name: state[start : start + rows] for name, state in self.row_state.items()}
        return part

    def begin(self, admission: Admission) -> "View":
        """The admitted rows as a view that holds their prefixes, or as much of them as the sources hold here.

        Row state is copied with a prefix. Sources are read before anything is written, so rows may be exchanged.
        """
        length = torch.minimum(admission.prefix_length, self.length[admission.source])
        if admission.moves:
            longest = admission.max_prefix_length
            for store in (self.keys, self.values):
                for layer in store:
                    layer[admission.rows, :longest] = layer[admission.source, :longest]
            for state in self.row_state.values():
                state[admission.rows] = state[admission.source]
        self.length.index_copy_(0, admission.rows, length)
        return self.view(admission.rows)

    def view(self, rows: Tensor | None = None, layers: Sequence[int] | None = None) -> "View":
        """All rows, or those of the index ``rows`` [B]; all layers, or a subset in the order given."""
        return View(self, rows, tuple(range(self.num_layers)) if layers is None else tuple(layers), None)


class View:
    """Some rows and layers of a storage. With a ``length`` of its own it drafts ahead without moving the storage's."""

    def __init__(self, storage: SlotCache, rows: Tensor | None, layers: tuple[int, ...], length: Tensor | None) -> None:
        self.storage = storage
        self.rows = rows
        self.layers = layers
        self.own_length = length

    @property
    def length(self) -> Tensor:
        """Committed slots per row [B]."""
        if self.own_length is not None:
            return self.own_length
        return self.storage.length if self.rows is None else self.storage.length[self.rows]

    @property
    def capacity(self) -> int:
        return self.storage.capacity

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.keys.dtype

    @property
    def row_index(self) -> Tensor:
        """Storage row of each row of the view [B]."""
        if self.rows is not None:
            return self.rows
        return torch.arange(self.storage.rows, device=self.storage.length.device)

    def apart(self, layers: Sequence[int] | None = None) -> "View":
        """The same rows, and some or all of the layers, with a copy of the length that moves on its own."""
        chosen = self.layers if layers is None else tuple(self.layers[i] for i in layers)
        return View(self.storage, self.rows, chosen, self.length.clone())

    def target_rows(self, valid: Tensor) -> Tensor:
        """Storage row that each node [B, n] writes to: its own, or the discarded one for invalid nodes."""
        return torch.where(valid, self.row_index[:, None], self.storage.rows)

    def write(self, layer: int, rows: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put ``keys`` and ``values`` [B, n, H, E] at ``rows`` (from target_rows) and ``slots``, both [B, n]."""
        index = self.layers[layer]
        self.storage.keys[index].index_put_((rows, slots), keys)
        self.storage.values[index].index_put_((rows, slots), values)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, S, H, E] of a layer, all slots; the reader masks."""
        index = self.layers[layer]
        keys, values = self.storage.keys[index], self.storage.values[index]
        if self.rows is None:
            return keys[: self.storage.rows], values[: self.storage.rows]
        return keys[self.rows], values[self.rows]

    def clear(self, rows: Sequence[int]) -> None:
        """Zero what rows of the storage hold: readers mask slots by weights of 0, and 0 times NaN is NaN."""
        index = torch.tensor(list(rows), device=self.length.device)
        for store in (self.storage.keys, self.storage.values):
            store[:, index] = 0
        self.storage.length[index] = 0

    def row_state(self, name: str) -> Tensor:
        """State [B, ...] of the rows under ``name``, as the LM made it at their admission."""
        state = self.storage.row_state[name]
        return state if self.rows is None else state[self.rows]

    def commit(self, num_committed: Tensor, path: Tensor | None = None) -> None:
        """Add ``num_committed`` [B] slots to the committed ones: the first scratch slot, then those of ``path``.

        ``path`` [B, D] names scratch slots in order, -1 after the last; None says they already lie in order (a chain).
        """
        if path is not None:
            length = self.length
            keep = torch.arange(1, path.shape[1] + 1, device=path.device) < num_committed[:, None]
            rows = self.row_index[:, None].expand_as(path)
            source = length[:, None] + path.clamp(min=0)
            target = torch.where(keep, length[:, None] + torch.arange(1, path.shape[1] + 1, device=path.device), 0)
            into = self.target_rows(keep)
            for layer in self.layers:
                for store in (self.storage.keys[layer], self.storage.values[layer]):
                    store.index_put_((into, target), store[rows, source])  # the gather copies, so overlap is safe
        if self.rows is None:
            self.length.add_(num_committed)
        else:
            self._move(self.length + num_committed)

    def permute(self, source: Tensor) -> None:
        """Permute the scratch: slot i after the committed ones is copied from slot ``source[:, i]`` [B, n] after them.

        -1 leaves the slot as it is.
        """
        length = self.length[:, None]
        rows = self.row_index[:, None].expand_as(source)
        slots = length + source.clamp(min=0)
        into = self.target_rows(source >= 0)
        target = (length + torch.arange(source.shape[1], device=source.device)).clamp(max=self.capacity - 1)
        for layer in self.layers:
            for store in (self.storage.keys[layer], self.storage.values[layer]):
                store.index_put_((into, target), store[rows, slots])  # the gather copies, so overlap is safe

    def truncate(self, length: int | Tensor) -> None:
        """Forget committed slots from ``length`` on: a row is being given to another request."""
        self._move(length if isinstance(length, Tensor) else torch.full_like(self.length, length))

    def _move(self, length: Tensor) -> None:
        if self.own_length is not None:
            self.own_length.copy_(length)
        elif self.rows is None:
            self.storage.length.copy_(length)
        else:
            self.storage.length.index_copy_(0, self.rows, length)
