"""Incremental detokenization returns the text of the new tokens, in complete characters."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.text.stream import CONTEXT, LONGEST, REPLACEMENT, TextStream
from paceline.text.tokenizer import load_tokenizer
from tests.text.makers import END, USER, byte_fallback, byte_level, metaspace, saved

SPLIT = "a日本🙂é!\u200dñ 👩🏽‍🚀"


@pytest.fixture(scope="module")
def tokenizers_by_name(tmp_path_factory):
    made = {
        "byte level": byte_level(specials=[USER], plain=["<tool>"]),
        "byte fallback": byte_fallback(),
        "metaspace": metaspace(),
    }
    return {name: saved(tmp_path_factory.mktemp("kind"), inner) for name, inner in made.items()}


@pytest.fixture(scope="module")
def tokenizer(tokenizers_by_name):
    return tokenizers_by_name["byte level"]


@pytest.fixture(scope="module")
def fallback(tokenizers_by_name):
    return tokenizers_by_name["byte fallback"]


def streamed(tokenizer, prompt, tokens, **options):
    stream = TextStream(tokenizer=tokenizer, prompt=prompt, **options)
    return [*(stream.push(token) for token in tokens), stream.flush()]


def new_text(tokenizer, prompt, tokens, *, skip_special=True):
    """The text that ``tokens`` add to ``prompt``, which may end inside a character."""
    known = tokenizer.decode(prompt, skip_special=skip_special)
    whole = tokenizer.decode([*prompt, *tokens], skip_special=skip_special)
    return whole[len(known) :] if whole.startswith(known) else whole[len(known) - 1 :]


def inside(tokenizer, text):
    """Tokens of ``text`` within a word, so without the mark of a word's beginning."""
    return tokenizer.encode("a" + text, special=False)[len(tokenizer.encode("a", special=False)) :]


def sequences(tokenizer, max_size=60):
    """Random tokens, including unknown ones, mixed with tokens of characters that span several."""
    whole = st.sampled_from([tokenizer.encode(text, special=False) for text in (SPLIT, "def add", "\ufffd", " ")])
    single = st.integers(0, tokenizer.size + 3).map(lambda token: [token])
    return st.lists(single | whole, max_size=max_size).map(lambda lists: [token for each in lists for token in each])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["byte level", "byte fallback", "metaspace"])
@pytest.mark.parametrize("skip_special", [True, False])
def test_pieces_add_up_to_the_text_of_the_new_tokens(tokenizers_by_name, name, skip_special):
    tokenizer = tokenizers_by_name[name]

    @settings(deadline=None, max_examples=150)
    @given(sequences(tokenizer, 20), sequences(tokenizer))
    def check(prompt, tokens):
        pieces = streamed(tokenizer, prompt, tokens, skip_special=skip_special)
        assert "".join(pieces) == new_text(tokenizer, prompt, tokens, skip_special=skip_special)

    check()


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_at_most_one_character_is_held_back(tokenizers_by_name, name):
    tokenizer = tokenizers_by_name[name]
    rng = random.Random(7)
    tokens = [rng.randrange(tokenizer.size) for _ in range(300)]
    stream = TextStream(tokenizer=tokenizer, prompt=[])
    shown = ""
    for at, token in enumerate(tokens, start=1):
        shown += stream.push(token)
        whole = tokenizer.decode(tokens[:at])
        assert shown == whole.removesuffix(REPLACEMENT)


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_character_split_over_tokens_is_returned_whole(tokenizers_by_name, name):
    tokenizer = tokenizers_by_name[name]
    prompt, tokens = tokenizer.encode("x"), tokenizer.encode(SPLIT)
    assert len(tokens) > len(SPLIT), "characters must span several tokens"
    pieces = streamed(tokenizer, prompt, tokens)
    assert "".join(pieces).lstrip() == SPLIT and not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@pytest.mark.parametrize("skip_special", [True, False])
def test_skipped_special_token_inside_a_character_has_no_effect(tokenizers_by_name, name, skip_special):
    tokenizer = tokenizers_by_name[name]
    special = next(token for token in range(tokenizer.size) if tokenizer.is_special(token))
    text = tokenizer.decode([special], skip_special=False)
    first, *rest = inside(tokenizer, "🙂")
    pieces = streamed(tokenizer, tokenizer.encode("x"), [first, special, *rest], skip_special=skip_special)
    assert "".join(pieces) == ("🙂" if skip_special else REPLACEMENT + text + REPLACEMENT * 3)


def test_incomplete_character_is_held_back_until_flush(tokenizer):
    tokens = tokenizer.encode("🙂")[:-1]
    *pieces, last = streamed(tokenizer, tokenizer.encode("x"), tokens)
    assert pieces == [""] * len(tokens) and last == REPLACEMENT


def test_characters_before_an_incomplete_one_are_returned(fallback):
    tokens = inside(fallback, "🙂🙂")[:-1]
    assert "".join(streamed(fallback, fallback.encode("a"), tokens)) == "🙂" + REPLACEMENT


def test_character_started_in_the_prompt_is_completed(tokenizer):
    first, *rest = tokenizer.encode("é")
    assert streamed(tokenizer, [*tokenizer.encode("x"), first], rest)[0] == "é"


def test_incomplete_character_of_the_prompt_is_not_repeated(tokenizer):
    broken = tokenizer.encode("é")[:1]
    assert streamed(tokenizer, [*tokenizer.encode("x"), *broken], tokenizer.encode("a")) == ["a", ""]
    assert streamed(tokenizer, [*tokenizer.encode("x"), *broken], []) == [""]


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_encoded_replacement_characters_are_returned(tokenizers_by_name, name):
    tokenizer = tokenizers_by_name[name]
    meant = inside(tokenizer, REPLACEMENT)
    stream = TextStream(tokenizer=tokenizer, prompt=tokenizer.encode("a"))
    assert "".join(stream.push(token) for token in meant * 40) == REPLACEMENT * 39
    assert stream.push(inside(tokenizer, "c")[0]) == REPLACEMENT + "c"


def test_invalid_bytes_do_not_block_the_stream(tokenizer):
    [stray] = [token for token in range(1, 257) if tokenizer.decode([token] * 3) == REPLACEMENT * 3][:1]
    stream = TextStream(tokenizer=tokenizer, prompt=[])
    assert [stream.push(stray) for _ in range(50)] == ["", *[REPLACEMENT] * 49]


def test_space_before_the_first_new_word_is_kept(tokenizers_by_name):
    tokenizer = tokenizers_by_name["metaspace"]
    assert tokenizer.decode([1, 2]) == "add sum", "decoded alone, the leading space is lost"
    assert streamed(tokenizer, [0], [1, 2]) == [" add", " sum", ""]


@pytest.mark.parametrize("name", ["byte level", "byte fallback", "metaspace"])
def test_tokens_without_text_do_not_change_spaces(tokenizers_by_name, name):
    tokenizer = tokenizers_by_name[name]
    special = next(token for token in range(tokenizer.size) if tokenizer.is_special(token))
    prompt, tokens = tokenizer.encode("def"), tokenizer.encode("add sum")
    crowd = [special, tokenizer.size + 1] * 2 * LONGEST
    among = [each for token in tokens for each in (*crowd, token)]
    plain = "".join(streamed(tokenizer, prompt, tokens))
    assert "".join(streamed(tokenizer, [*prompt, *crowd], among)) == plain == new_text(tokenizer, prompt, tokens)


def test_special_tokens_are_returned_on_request(tokenizers_by_name):
    tokenizer = tokenizers_by_name["byte fallback"]
    end = tokenizer.encode(END, special=False)[-1]
    tokens = [*tokenizer.encode("a b", special=False), end]
    assert "".join(streamed(tokenizer, tokenizer.encode("a"), tokens)) == " a b"
    assert streamed(tokenizer, tokenizer.encode("a"), tokens, skip_special=False)[-2:] == [END, ""]


def test_number_of_tokens_decoded_per_push_is_bounded(tokenizer, monkeypatch):
    stream = TextStream(tokenizer=tokenizer, prompt=tokenizer.encode("x" * 500))
    longest = 0
    decode = type(tokenizer).decode

    def counted(self, tokens, *, skip_special=True):
        nonlocal longest
        longest = max(longest, len(tokens))
        return decode(self, tokens, skip_special=skip_special)

    monkeypatch.setattr(type(tokenizer), "decode", counted)
    rng = random.Random(3)
    for _ in range(300):
        stream.push(rng.randrange(tokenizer.size))
    assert CONTEXT < longest <= LONGEST + 1


def test_tokenizer_json_alone_is_enough(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert "".join(streamed(tokenizer, [], tokenizer.encode(SPLIT))) == SPLIT
