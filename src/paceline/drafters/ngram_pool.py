"""N-grams of each row by their first token, the latest of each, in tensors of fixed size.

R rows, B buckets, G n-grams of a bucket, n tokens of an n-gram, w n-grams at once.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

MOST_BUCKETS = 4096  # of a row; first tokens of larger vocabularies share them


@final
class NgramPool:
    """Keeps ``guesses`` n-grams of ``ngram`` tokens per bucket: those added last, none twice.

    The bucket of an n-gram is its first token modulo the number of buckets.
    """

    def __init__(self, *, rows: int, ngram: int, guesses: int, vocab_size: int, device: torch.device) -> None:
        self.ngram, self.guesses, self.num_buckets = ngram, guesses, min(vocab_size, MOST_BUCKETS)
        shape = (rows, self.num_buckets, guesses * ngram)
        # Of a bucket, the latest last; free places first, whose tokens are -1.
        self.held = torch.full(shape, -1, dtype=torch.int64, device=device)
        self._row = torch.arange(rows, device=device)

    def begin(self, rows: Sequence[int], sequences: Sequence[Sequence[int]]) -> None:
        """Forget what ``rows`` hold, and add the n-grams of their ``sequences``, one after the other."""
        place, kept = list[tuple[int, int]](), list[list[int]]()
        for row, tokens in zip(rows, sequences, strict=True):
            latest: dict[int, dict[tuple[int, ...], None]] = {}
            for at in range(len(tokens) - self.ngram + 1):
                ngram = tuple(tokens[at : at + self.ngram])
                bucket = latest.setdefault(ngram[0] % self.num_buckets, {})
                bucket.pop(ngram, None)
                bucket[ngram] = None
            for number, bucket in latest.items():
                flat = [token for ngram in list(bucket)[-self.guesses :] for token in ngram]
                place.append((row, number))
                kept.append([-1] * (self.guesses * self.ngram - len(flat)) + flat)
        device = self.held.device
        self.held.index_fill_(0, torch.tensor(list(rows), device=device), -1)
        if place:
            at = torch.tensor(place, device=device)
            self.held[at[:, 0], at[:, 1]] = torch.tensor(kept, device=device)

    def find(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """What follows ``first`` [R] in the n-grams that begin with it, the latest last [R, G, n - 1].

        And which of the G there are [R, G] bool: the last ones.
        """
        held = self.held[self._row, first % self.num_buckets].unflatten(1, (self.guesses, self.ngram))
        match = held[..., 0] == first[:, None]
        order = match.long().argsort(dim=1, stable=True)  # those of other tokens in the same bucket first
        return held.gather(1, order[..., None].expand_as(held))[..., 1:], match.gather(1, order)

    def add(self, ngrams: Tensor, wanted: Tensor) -> None:
        """Add ``ngrams`` [R, w, n] where ``wanted`` [R, w], in their order; the earliest of a full bucket goes.

        The result of adding one after the other is, of each bucket, the last G different n-grams of what it held and of
        what is added.
        """
        rows, number, size = ngrams.shape
        bucket = ngrams[..., 0] % self.num_buckets
        into = bucket[..., None].expand(-1, -1, self.held.shape[2])
        held = self.held.gather(1, into).unflatten(2, (self.guesses, size))
        every = torch.cat((held, ngrams[:, None].expand(-1, number, -1, -1)), dim=2)  # [R, w, G + w, n]
        same = (bucket[:, :, None] == bucket[:, None]) & wanted[:, None]
        there = torch.cat((held[..., 0] >= 0, same), dim=2)  # [R, w, G + w]
        index = torch.arange(self.guesses + number, device=ngrams.device)
        again = (every[:, :, :, None] == every[:, :, None]).all(-1) & there[:, :, None]
        last = there & ~(again & (index[:, None] < index)).any(-1)
        place = self.guesses - 1 - (last.sum(-1, keepdim=True) - last.cumsum(-1))
        place = torch.where(last & (place >= 0), place, self.guesses)  # the last place takes what is dropped
        kept = torch.full((rows, number, self.guesses + 1, size), -1, device=ngrams.device)
        kept = kept.scatter(2, place[..., None].expand_as(every), every)[:, :, :-1]
        self.held.scatter_(1, into, kept.flatten(2))  # n-grams of one bucket write the same
