"""Recovered token ids are those that were sampled; completions whose ids cannot be known are dropped."""

from dataclasses import replace

import pytest
import torch

from paceline.audit.client import Completion, ServerError
from paceline.audit.token_recovery import (
    RecoveredTokens,
    TokenRecovery,
    TokenSource,
    choose_source,
    reencode,
    reported_ids,
    unique_strings,
)
from paceline.text.tokenizer import load_tokenizer
from tests.api.checkpoints import pair
from tests.audit.character_model import folder

EMPTY = Completion(text="", stopped=False)
EOS = (0, 1)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(folder())


@pytest.fixture(scope="module")
def byte_level():
    return load_tokenizer(pair().target)


def recovery(source, tokenizer, eos=EOS):
    return TokenRecovery(source=source, tokenizer=tokenizer, eos=eos, vocab_size=tokenizer.size)


def ids(tokenizer, text):
    return tuple(tokenizer.encode(text, special=False))


def test_token_ids_are_read_in_both_forms():
    assert reported_ids(replace(EMPTY, token_ids=(3, 5))) == (3, 5)
    assert reported_ids(replace(EMPTY, tokens=("token_id:3", "token_id:12"))) == (3, 12)
    for tokens in (None, ("a",), ("token_id:3", "b"), ("token_id:x",), ("token_id:",)):
        assert reported_ids(replace(EMPTY, tokens=tokens)) is None


def test_best_source_of_all_completions_is_chosen(tokenizer, byte_level):
    with_ids, with_strings = replace(EMPTY, token_ids=(3,)), replace(EMPTY, tokens=("a",))
    for encoder, completions, source in (
        (tokenizer, [with_ids, with_ids], TokenSource.TOKEN_IDS),
        (tokenizer, [with_strings, replace(with_strings, tokens=("token_id:4",))], TokenSource.TOKEN_STRINGS),
        (tokenizer, [with_strings, EMPTY], TokenSource.TEXT),
        (byte_level, [with_strings], TokenSource.TEXT),  # half of its tokens are parts of characters
    ):
        assert choose_source(completions, tokenizer=encoder, vocab_size=encoder.size) is source


ENDS = {
    "length": (dict(token_ids=(7, 8)), (7, 8)),
    "unreported eos": (dict(token_ids=(7, 8), stopped=True), (7, 8, 0)),
    "reported eos": (dict(token_ids=(7, 8, 0), stopped=True), (7, 8, 0)),
    "another eos, which counts as the first": (dict(token_ids=(7, 8, 1), stopped=True), (7, 8, 0)),
    "eos alone": (dict(token_ids=(), stopped=True), (0,)),
}


@pytest.mark.parametrize("case", ENDS)
def test_end_of_text_token_is_included(tokenizer, case):
    fields, token_ids = ENDS[case]
    found = recovery(TokenSource.TOKEN_IDS, tokenizer).recover((5,), replace(EMPTY, **fields))
    assert found == RecoveredTokens(token_ids=token_ids)


def test_probabilities_of_all_end_of_text_tokens_are_added(tokenizer):
    probs = torch.rand(3, tokenizer.size, dtype=torch.float64).softmax(-1)
    found = recovery(TokenSource.TOKEN_IDS, tokenizer).conditional_probs(probs)
    assert torch.equal(found[:, 0], probs[:, 0] + probs[:, 1]) and not found[:, 1].any()
    assert torch.allclose(found.sum(-1), torch.ones(3, dtype=torch.float64)) and probs[:, 1].all()
    assert recovery(TokenSource.TOKEN_IDS, tokenizer, eos=(0,)).conditional_probs(probs) is probs


def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    message = f"reports token id 999, and the model's vocabulary has {tokenizer.size}: it serves another model"
    with pytest.raises(ServerError, match=message):
        recovery(TokenSource.TOKEN_IDS, tokenizer).recover((5,), replace(EMPTY, token_ids=(3, 999)))


def test_completion_without_the_source_is_dropped(tokenizer):
    for source in (TokenSource.TOKEN_IDS, TokenSource.TOKEN_STRINGS):
        assert recovery(source, tokenizer).recover((5,), replace(EMPTY, text="a")) is None


def test_shared_strings_are_not_unique(byte_level):
    unique = unique_strings(byte_level, 320)
    assert 100 < len(unique) < 0.9 * byte_level.size and "\ufffd" not in unique
    assert all(byte_level.decode([token], skip_special=False) == text for text, token in unique.items())


def test_token_strings_are_read_up_to_the_first_that_is_not_unique(tokenizer):
    strings, eos = recovery(TokenSource.TOKEN_STRINGS, tokenizer, eos=(0,)), "<|end|>"
    word = ids(tokenizer, "ab")
    for tokens, stopped, found in (
        (("a", "b"), False, RecoveredTokens(token_ids=word)),
        (("a", "b", "\ufffd", "c"), True, RecoveredTokens(token_ids=word, truncated=True)),
        (("a", "b", eos), True, RecoveredTokens(token_ids=(*word, 0))),
        (("a", "b"), True, RecoveredTokens(token_ids=(*word, 0))),
        (("a", "b", ""), True, RecoveredTokens(token_ids=(*word, 0))),
        (("a", "b", ""), False, RecoveredTokens(token_ids=word, truncated=True)),
    ):
        assert strings.recover((5,), replace(EMPTY, tokens=tokens, stopped=stopped)) == found


def test_probabilities_are_conditioned_on_readable_tokens(tokenizer, monkeypatch):
    monkeypatch.setattr("paceline.audit.token_recovery.unique_strings", lambda *_: {"a": 5, "b": 7})
    probs = torch.rand(2, tokenizer.size, dtype=torch.float64).softmax(-1)
    found = recovery(TokenSource.TOKEN_STRINGS, tokenizer, eos=(0,)).conditional_probs(probs)
    assert found.nonzero()[:, 1].tolist() == [0, 5, 7] * 2
    assert torch.allclose(found[:, 5] / found[:, 7], probs[:, 5] / probs[:, 7])
    assert torch.allclose(found.sum(-1), torch.ones(2, dtype=torch.float64))


def test_text_is_reencoded_after_its_prompt(tokenizer, byte_level):
    prompt = ids(tokenizer, "def f(")
    assert reencode(tokenizer, prompt, ")in x") == ids(tokenizer, ")in x")  # though "()" would be one token
    assert reencode(tokenizer, prompt, "a\ufffd") is None
    assert reencode(tokenizer, prompt, "é") is None  # no token decodes to it
    assert reencode(byte_level, ids(byte_level, "def add("), "é print") == ids(byte_level, "é print")


COUNTS = {
    "no count": (dict(), 2),
    "the right count": (dict(num_tokens=2), 2),
    "another count": (dict(num_tokens=3), None),
    "a count with eos": (dict(num_tokens=3, stopped=True), 3),
    "a count without eos": (dict(num_tokens=2, stopped=True), 3),
}


@pytest.mark.parametrize("case", COUNTS)
def test_reencoded_text_of_another_length_is_dropped(tokenizer, case):
    fields, length = COUNTS[case]
    found = recovery(TokenSource.TEXT, tokenizer).recover((5,), replace(EMPTY, text="xy", **fields))
    assert (None if found is None else len(found.token_ids)) == length
