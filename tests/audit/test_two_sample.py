"""Two sets of texts of one source are alike, however wrong the laws beside them are; others are told apart."""

import pytest
import torch

from paceline.audit.goodness_of_fit import Tokens
from paceline.audit.two_sample import FEWEST, Texts, compare

VOCAB, LENGTH = 24, 20


def texts_of(seed, count=80, change=lambda p: p):
    """Texts of which some tokens are others than were drawn, as where they are encoded anew."""
    generator = torch.Generator().manual_seed(seed)
    texts, plain = Texts(seed=seed), Tokens(seed=seed)
    for _ in range(count):
        laws = (2 * torch.randn(LENGTH, VOCAB, generator=generator, dtype=torch.float64)).softmax(-1)
        drawn = torch.multinomial(change(laws), 1, generator=generator)[:, 0]
        other = torch.rand(LENGTH, generator=generator) < 0.05
        tokens = torch.where(other, torch.randint(VOCAB, (LENGTH,), generator=generator), drawn)
        texts.add(laws, tokens)
        plain.add(laws, tokens)
    return texts, plain


def test_what_departs_alike_is_honest_where_the_laws_alone_would_not_have_it():
    (one, plain), (other, _) = texts_of(1, 400), texts_of(2, 400)
    assert not plain.verdict().honest
    found = compare(one, other)
    assert found.honest and found.num_tokens == 400 * LENGTH
    assert found.surprise == pytest.approx(plain.verdict().surprise)
    assert abs(found.surprise - found.entropy) < 2 * found.half_width


def test_p_values_of_texts_of_one_source_are_uniform():
    found = [compare(texts_of(seed)[0], texts_of(1000 + seed)[0]) for seed in range(30)]
    for name in ("surprise_p", "place_p", "rank_p"):
        values = [getattr(one, name) for one in found]
        assert 0.35 < sum(values) / len(values) < 0.65 and min(values) < 0.2 and max(values) > 0.8, name
    assert sum(not one.honest for one in found) <= 2


@pytest.mark.parametrize("warmth", [0.8, 1.25])
def test_another_temperature_is_told_apart(warmth):
    changed, _ = texts_of(3, 200, lambda p: (p.log() * warmth).softmax(-1))
    assert not compare(changed, texts_of(4, 200)[0]).honest


def test_few_texts_are_not_compared():
    (few, _), (many, _) = texts_of(5, FEWEST - 1), texts_of(6, FEWEST)
    for one, other in ((few, many), (many, few), (Texts(), many)):
        with pytest.raises(ValueError, match=f"give at least {FEWEST} of each"):
            compare(one, other)
