"""Tokens are read from what a server tells: never another than was drawn, and what cannot be known is left out."""

from dataclasses import replace

import pytest
import torch

from paceline.audit.client import Completion, ServerError
from paceline.audit.reported import Drawn, Reader, Telling, choose_telling, encode_again, numbers_of, spellings
from paceline.text.tokenizer import load_tokenizer
from tests.api.checkpoints import pair
from tests.audit.spoken import folder

SAID = Completion(
    text="", stopped=False, token_ids=None, tokens=None, logprobs=None, num_prompt_tokens=None, num_tokens=None
)
EOS = (0, 1)


@pytest.fixture(scope="module")
def spoken():
    return load_tokenizer(folder())


def reader(telling, tokenizer, eos=EOS):
    return Reader(telling=telling, tokenizer=tokenizer, eos=eos, vocab_size=tokenizer.size)


def ids(tokenizer, text):
    return tuple(tokenizer.encode(text, special=False))


def test_numbers_are_taken_in_both_forms():
    assert numbers_of(replace(SAID, token_ids=(3, 5))) == (3, 5)
    assert numbers_of(replace(SAID, tokens=("token_id:3", "token_id:12"))) == (3, 12)
    for tokens in (None, ("a",), ("token_id:3", "b"), ("token_id:x",), ("token_id:",)):
        assert numbers_of(replace(SAID, tokens=tokens)) is None


def test_the_best_way_that_all_texts_allow_is_chosen(spoken):
    numbered, spelled = replace(SAID, token_ids=(3,)), replace(SAID, tokens=("a",))
    byte_level = load_tokenizer(pair().target)
    for tokenizer, answers, telling in (
        (spoken, [numbered, numbered], Telling.NUMBERS),
        (spoken, [spelled, replace(spelled, tokens=("token_id:4",))], Telling.SPELLINGS),
        (spoken, [spelled, SAID], Telling.TEXT),
        (byte_level, [spelled], Telling.TEXT),  # half of its tokens are parts of characters
    ):
        assert choose_telling(answers, tokenizer=tokenizer, vocab_size=tokenizer.size) is telling


ENDS = {
    "by length": (dict(token_ids=(7, 8)), (7, 8)),
    "by an end that is not counted": (dict(token_ids=(7, 8), stopped=True), (7, 8, 0)),
    "by an end that is": (dict(token_ids=(7, 8, 0), stopped=True), (7, 8, 0)),
    "by another end, which counts as the first": (dict(token_ids=(7, 8, 1), stopped=True), (7, 8, 0)),
    "at once": (dict(token_ids=(), stopped=True), (0,)),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_end_of_a_text_is_a_token(spoken, case):
    said, tokens = ENDS[case]
    assert reader(Telling.NUMBERS, spoken).read((5,), replace(SAID, **said)) == Drawn(tokens=tokens)


def test_all_ends_are_one_in_the_laws(spoken):
    law = torch.rand(3, spoken.size, dtype=torch.float64).softmax(-1)
    read = reader(Telling.NUMBERS, spoken).laws(law)
    assert torch.equal(read[:, 0], law[:, 0] + law[:, 1]) and not read[:, 1].any()
    assert torch.allclose(read.sum(-1), torch.ones(3, dtype=torch.float64)) and law[:, 1].all()
    assert reader(Telling.NUMBERS, spoken, eos=(0,)).laws(law) is law


def test_ids_of_another_model_are_refused(spoken):
    with pytest.raises(ServerError, match=f"gives token 999, and the model has {spoken.size}: it serves another"):
        reader(Telling.NUMBERS, spoken).read((5,), replace(SAID, token_ids=(3, 999)))


def test_a_text_without_what_others_have_is_left_out(spoken):
    for telling in (Telling.NUMBERS, Telling.SPELLINGS):
        assert reader(telling, spoken).read((5,), replace(SAID, text="a")) is None


def test_spellings_that_are_shared_are_no_spellings():
    tokenizer = load_tokenizer(pair().target)
    known = spellings(tokenizer, 320)
    assert 100 < len(known) < 0.9 * tokenizer.size and "\ufffd" not in known
    assert all(tokenizer.decode([token], skip_special=False) == text for text, token in known.items())


def test_a_text_is_read_up_to_the_first_spelling_that_is_nobodys(spoken):
    known, end = reader(Telling.SPELLINGS, spoken, eos=(0,)), "<|end|>"
    word = ids(spoken, "ab")
    for tokens, stopped, drawn in (
        (("a", "b"), False, Drawn(tokens=word)),
        (("a", "b", "\ufffd", "c"), True, Drawn(tokens=word, cut=True)),
        (("a", "b", end), True, Drawn(tokens=(*word, 0))),
        (("a", "b"), True, Drawn(tokens=(*word, 0))),
        (("a", "b", ""), True, Drawn(tokens=(*word, 0))),
        (("a", "b", ""), False, Drawn(tokens=word, cut=True)),
    ):
        assert known.read((5,), replace(SAID, tokens=tokens, stopped=stopped)) == drawn


def test_laws_of_spellings_are_among_what_can_be_read(spoken, monkeypatch):
    monkeypatch.setattr("paceline.audit.reported.spellings", lambda *_: {"a": 5, "b": 7})
    law = torch.rand(2, spoken.size, dtype=torch.float64).softmax(-1)
    read = reader(Telling.SPELLINGS, spoken, eos=(0,)).laws(law)
    assert read.nonzero()[:, 1].tolist() == [0, 5, 7] * 2
    assert torch.allclose(read[:, 5] / read[:, 7], law[:, 5] / law[:, 7])
    assert torch.allclose(read.sum(-1), torch.ones(2, dtype=torch.float64))


def test_a_text_is_encoded_after_its_prompt_or_left_out(spoken):
    prompt = ids(spoken, "def f(")
    assert encode_again(spoken, prompt, ")in x") == ids(spoken, ")in x")  # though "()" would be one token
    assert encode_again(spoken, prompt, "a\ufffd") is None
    assert encode_again(spoken, prompt, "é") is None  # nothing spells it
    byte_level = load_tokenizer(pair().target)
    assert encode_again(byte_level, ids(byte_level, "def add("), "é print") == ids(byte_level, "é print")


COUNTS = {
    "no count": (dict(), 2),
    "the right count": (dict(num_tokens=2), 2),
    "another count": (dict(num_tokens=3), None),
    "an end that is counted": (dict(num_tokens=3, stopped=True), 3),
    "an end that is not": (dict(num_tokens=2, stopped=True), 3),
}


@pytest.mark.parametrize("case", COUNTS)
def test_a_text_of_another_number_of_tokens_is_left_out(spoken, case):
    said, length = COUNTS[case]
    drawn = reader(Telling.TEXT, spoken).read((5,), replace(SAID, text="xy", **said))
    assert (None if drawn is None else len(drawn.tokens)) == length
