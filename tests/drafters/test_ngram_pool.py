"""The pool of n-grams by their first token, against one that adds them one by one."""

import pytest
import torch

from paceline.drafters import ngram_pool
from paceline.drafters.ngram_pool import NgramPool


class Lists:
    """One row: buckets of at most ``guesses`` n-grams, the latest last."""

    def __init__(self, guesses, num_buckets):
        self.guesses, self.num_buckets, self.buckets = guesses, num_buckets, {}

    def add(self, ngram):
        held = self.buckets.setdefault(ngram[0] % self.num_buckets, [])
        if ngram in held:
            held.remove(ngram)
        held.append(ngram)
        del held[: -self.guesses]

    def find(self, first):
        return [ngram[1:] for ngram in self.buckets.get(first % self.num_buckets, []) if ngram[0] == first]


def buckets_of(pool, row):
    size, found = pool.ngram, {}
    for number, held in enumerate(pool.held[row].tolist()):
        ngrams = [held[at : at + size] for at in range(0, len(held), size) if held[at] >= 0]
        if ngrams:
            found[number] = ngrams
    return found


@pytest.mark.parametrize("most_buckets", [4096, 3])
@pytest.mark.parametrize("guesses", [1, 2, 4])
def test_adding_at_once_is_adding_one_after_the_other(guesses, most_buckets, monkeypatch):
    """Tokens of a small vocabulary, so that n-grams repeat, fill their buckets and share them."""
    monkeypatch.setattr(ngram_pool, "MOST_BUCKETS", most_buckets)
    generator = torch.Generator().manual_seed(guesses)
    pool = NgramPool(rows=3, ngram=3, guesses=guesses, vocab_size=5, device=torch.device("cpu"))
    lists = [Lists(guesses, min(5, most_buckets)) for _ in range(3)]
    prompts = [torch.randint(5, (length,), generator=generator).tolist() for length in (9, 2, 0)]
    pool.begin(range(3), prompts)
    for one, prompt in zip(lists, prompts, strict=True):
        for at in range(len(prompt) - 2):
            one.add(prompt[at : at + 3])
    for _ in range(60):
        ngrams = torch.randint(5, (3, 6, 3), generator=generator)
        ngrams[..., 1:].clamp_(max=1)
        ngrams_wanted = torch.rand(3, 6, generator=generator) < 0.7
        pool.add(ngrams, ngrams_wanted)
        for row, one in enumerate(lists):
            for ngram, wanted in zip(ngrams[row].tolist(), ngrams_wanted[row].tolist(), strict=True):
                if wanted:
                    one.add(ngram)
            assert buckets_of(pool, row) == one.buckets
        first = torch.randint(5, (3,), generator=generator)
        rest, there = pool.find(first)
        for row, one in enumerate(lists):
            assert rest[row][there[row]].tolist() == one.find(int(first[row]))
            assert there[row].tolist() == sorted(there[row].tolist()), "those that there are come last"


def test_a_row_begins_anew_and_its_neighbours_keep_theirs():
    pool = NgramPool(rows=2, ngram=3, guesses=2, vocab_size=9, device=torch.device("cpu"))
    pool.begin([0, 1], [[1, 2, 3, 4], [5, 6, 7]])
    pool.begin([0], [[8, 8, 8, 8]])
    assert buckets_of(pool, 0) == {8: [[8, 8, 8]]} and buckets_of(pool, 1) == {5: [[5, 6, 7]]}


def test_the_earliest_of_a_full_bucket_goes_and_what_comes_again_is_the_latest():
    pool = NgramPool(rows=1, ngram=3, guesses=2, vocab_size=9, device=torch.device("cpu"))
    yes = torch.ones(1, 3, dtype=torch.bool)
    pool.add(torch.tensor([[[1, 2, 3], [1, 4, 5], [1, 2, 3]]]), yes)
    assert buckets_of(pool, 0) == {1: [[1, 4, 5], [1, 2, 3]]}
    pool.add(torch.tensor([[[1, 6, 7]]]), yes[:, :1])
    assert buckets_of(pool, 0) == {1: [[1, 2, 3], [1, 6, 7]]}
