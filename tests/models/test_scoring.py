"""Log-probabilities of known sequences equal those of a plain transformers forward, for any batch and chunk size."""

import pytest
import torch

from paceline.models import scoring
from paceline.models.scoring import Passage, chunk_size, score_passages, score_sequences
from tests import tiny
from tests.models.layouts import plain, shaken, texts

FAMILIES = {"llama": tiny.llama, "gpt2": tiny.gpt2}
# (tokens, first scored): ragged, one token alone, nothing to score, the whole context
SHAPES = ((40, 1), (7, 3), (128, 100), (2, 1), (1, 1), (33, 32), (20, 20), (128, 1), (65, 30))
# transformers' Llama computes norms and rotary angles in float32, whatever its weights are.
CLOSE = {
    ("llama", torch.float32): 1e-4,
    ("gpt2", torch.float32): 1e-4,
    ("llama", torch.float64): 1e-5,
    ("gpt2", torch.float64): 1e-9,
}


def models(family, dtype=torch.float64):
    model = shaken(FAMILIES[family](dtype=dtype))
    return model, tiny.native(model)


def passages():
    rows = texts(len(SHAPES), 128).tolist()
    return [Passage(tokens=tuple(row[:n]), first=first) for row, (n, first) in zip(rows, SHAPES, strict=True)]


def by_transformers(model, passage):
    """(log-probabilities of the scored tokens, distributions [n, V] that they come from)."""
    distributions = plain(model, list(passage.tokens)).log_softmax(-1)[passage.first - 1 : -1]
    tokens = torch.tensor(passage.tokens[passage.first :], dtype=torch.int64)
    return distributions.gather(1, tokens[:, None])[:, 0], distributions


@pytest.mark.parametrize(("family", "dtype"), CLOSE, ids=str)
def test_log_probabilities_equal_transformers(family, dtype):
    close, (model, ours) = CLOSE[family, dtype], models(family, dtype)
    for passage, found in zip(passages(), score_passages(ours, passages(), top=4), strict=True):
        expected, distributions = by_transformers(model, passage)
        torch.testing.assert_close(torch.tensor(found.logprobs, dtype=dtype), expected, rtol=0, atol=close)
        best = distributions.topk(4, dim=-1)
        values = [[value for _, value in row] for row in found.top]
        torch.testing.assert_close(torch.tensor(values, dtype=dtype).view(-1, 4), best.values, rtol=0, atol=close)
        if dtype is torch.float64:
            assert [[token for token, _ in row] for row in found.top] == best.indices.tolist()
            tokens = torch.tensor(passage.tokens[passage.first :])
            assert list(found.greedy) == (distributions.argmax(-1) == tokens).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_log_probabilities_equal_one_uncached_forward(family):
    _, ours = models(family)
    for passage, found in zip(passages(), score_passages(ours, passages()), strict=True):
        tokens = torch.tensor([passage.tokens])
        distribution = ours.causal(tokens).logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])[0, :, 0]
        assert found.logprobs == pytest.approx(distribution[passage.first - 1 :].tolist(), abs=1e-9)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("batch_size", [1, 2, 4, None])
@pytest.mark.parametrize("size", [1, 5, 64])
def test_batch_and_chunk_sizes_do_not_change_scores(batch_size, size, monkeypatch):
    _, ours = models("llama")
    whole = score_passages(ours, passages(), top=3, batch_size=len(SHAPES))
    monkeypatch.setattr(scoring, "CHUNK", size)
    for one, other in zip(whole, score_passages(ours, passages(), top=3, batch_size=batch_size), strict=True):
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-9)
        assert other.greedy == one.greedy
        assert [[token for token, _ in row] for row in other.top] == [[token for token, _ in row] for row in one.top]


def test_greedy_marks_the_tokens_of_greedy_decoding():
    model, ours = models("llama")
    text = [5, 9, 2]
    for _ in range(20):
        text.append(int(plain(model, text)[-1].argmax()))
    found = score_passages(ours, [Passage(tokens=tuple(text), first=3)])[0]
    assert len(found.greedy) == 20 and all(found.greedy)
    changed = [*text[:10], (text[10] + 1) % tiny.VOCAB, *text[11:]]
    found = score_passages(ours, [Passage(tokens=tuple(changed), first=3)])[0]
    assert all(found.greedy[:7]) and not found.greedy[7]


def test_logits_are_reduced_in_single_precision_at_least():
    _, ours = models("llama", torch.float32)
    text = texts(2, 30)
    half = ours.to(torch.bfloat16)
    scored = score_sequences(half, text, torch.tensor([30, 12]), 1, top=2)
    assert scored.logprobs.dtype == scored.top_logprobs.dtype == torch.float32
    distribution = torch.tensor([[value for _, value in row] for row in _whole_distribution(half, text)]).exp().sum(-1)
    torch.testing.assert_close(distribution, torch.ones(29), rtol=0, atol=1e-5)


def _whole_distribution(lm, text):
    return score_passages(lm, [Passage(tokens=tuple(text[0].tolist()), first=1)], top=tiny.VOCAB)[0].top


@pytest.mark.parametrize(
    ("rows", "vocab_size", "size"), [(1, 100, 256), (16, 128_256, 32), (1, 262_144, 256), (4096, 262_144, 1)]
)
def test_logits_of_a_chunk_stay_within_their_memory(rows, vocab_size, size):
    assert chunk_size(rows, vocab_size) == size
    assert size == 1 or rows * size * vocab_size * 4 <= 256 * 2**20


class Watched:
    """A model that records its calls."""

    def __init__(self, lm):
        self.lm, self.calls, self.slots = lm, [], []

    def __getattr__(self, name):
        return getattr(self.lm, name)

    def new_cache(self, rows, capacity):
        self.slots.append(rows * capacity * self.lm.slot_bytes)
        return self.lm.new_cache(rows, capacity)

    def __call__(self, tree, cache, **options):
        self.calls.append((tree.tokens.shape[0], tree.num_nodes, options["logits_for"].name))
        return self.lm(tree, cache, **options)


def test_the_lm_head_runs_only_on_scored_chunks_and_the_last_token_is_not_read(monkeypatch):
    watched = Watched(models("llama")[1])
    monkeypatch.setattr(scoring, "CHUNK", 16)
    score_passages(watched, [Passage(tokens=tuple(range(50)), first=40), Passage(tokens=tuple(range(50)), first=45)])
    assert watched.calls == [(2, 16, "NONE"), (2, 16, "NONE"), (2, 7, "NONE"), (2, 10, "ALL")]


def test_rows_of_similar_length_share_a_batch():
    watched = Watched(models("llama")[1])
    lengths = [3, 60, 4, 61, 5, 62]
    score_passages(watched, [Passage(tokens=(1,) * n, first=1) for n in lengths], batch_size=3)
    assert [(rows, nodes) for rows, nodes, _ in watched.calls] == [(3, 61), (3, 4)]


def test_cache_memory_limits_the_rows_of_a_batch(monkeypatch):
    watched = Watched(models("llama")[1])
    twenty = [Passage(tokens=(1,) * 10, first=1)] * 20
    score_passages(watched, twenty)
    assert [rows for rows, *_ in watched.calls] == [16, 4]
    watched.calls.clear()
    monkeypatch.setattr(scoring, "CACHE_BYTES", 10 * watched.slot_bytes * 6)
    score_passages(watched, twenty)
    assert [rows for rows, *_ in watched.calls] == [6, 6, 6, 2]
    assert max(watched.slots[2:]) <= scoring.CACHE_BYTES
    watched.calls.clear()
    monkeypatch.setattr(scoring, "CACHE_BYTES", 1)
    score_passages(watched, twenty[:2])
    assert [rows for rows, *_ in watched.calls] == [1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(top=-1), "top=-1: give 0"),
        (dict(top=62), "top=62: give 0 .* to 61, the size of the vocabulary"),
        (dict(batch_size=0), "batch_size=0: give at least 1, or None"),
    ],
)
def test_counts_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        score_passages(models("llama")[1], [Passage(tokens=(1, 2), first=1)], **options)
