"""The order in which submissions of several clients get rows: by priority, then each client its share of the tokens."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar, final

Entry = TypeVar("Entry")


@final
class FairQueue(Generic[Entry]):
    """Waiting entries. Of those of one priority a client gets as many tokens served as another, however many it asks
    for at once (start-time fair queuing: Goyal, Vin and Cheng 1996): what waits behind others of the same client begins
    where these would end.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Entry, int]] = []
        self._ends: dict[str, float] = {}  # in tokens served, of each client's last entry
        self._served, self._number = 0.0, 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Entry]:
        return (entry for *_, entry, _ in self._heap)

    def push(self, entry: Entry, *, num_tokens: int, client: str = "", priority: int = 0) -> None:
        """Add an entry that may take ``num_tokens``, prompt included; those of a smaller ``priority`` come first."""
        start = max(self._served, self._ends.get(client, 0.0))
        self._ends[client] = start + num_tokens
        self._number += 1
        heapq.heappush(self._heap, (priority, start, self._number, entry, num_tokens))
        self.num_tokens += num_tokens

    def pop(self) -> Entry:
        """Take the next entry out. Raises IndexError if there is none."""
        _, start, _, entry, num_tokens = heapq.heappop(self._heap)
        self._served = max(self._served, start)
        self.num_tokens -= num_tokens
        if not self._heap:  # nobody waits, so nobody is owed anything
            self._ends.clear()
            self._served = 0.0
        return entry

    def remove(self, entry: Entry) -> bool:
        """Take ``entry`` out wherever it waits, and say whether it did."""
        for at, item in enumerate(self._heap):
            if item[3] is entry:
                self.num_tokens -= item[4]
                del self._heap[at]
                heapq.heapify(self._heap)
                return True
        return False
