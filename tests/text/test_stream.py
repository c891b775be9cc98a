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


def continuation(tokenizer, prompt, tokens, *, skip_special=True):
    """What ``tokens`` add to the text of ``prompt``, which may end inside a character."""
    known = tokenizer.decode(prompt, skip_special=skip_special)
    whole = tokenizer.decode([*prompt, *tokens], skip_special=skip_special)
    return whole[len(known) :] if whole.startswith(known) else whole[len(known) - 1 :]


def inside(tokenizer, text):
    """Tokens of ``text`` within a word, so without the mark of a word's beginning."""
    return tokenizer.encode("a" + text, special=False)[len(tokenizer.encode("a", special=False)) :]


def sequences(tokenizer, max_size=60):
    """Any tokens, unknown ones too, mixed with the tokens of texts whose characters span several."""
    whole = st.sampled_from([tokenizer.encode(text, special=False) for text in (SPLIT, "def add", "\ufffd", " ")])
    single = st.integers(0, tokenizer.size + 3).map(lambda token: [token])
    return st.lists(single | whole, max_size=max_size).map(lambda lists: [token for each in lists for token in each])


@pytest.mark.parametrize("name", ["byte level", "byte fallback", "metaspace"])
@pytest.mark.parametrize("skip_special", [True, False])
def test_pieces_add_up_to_the_text_of_any_tokens(tokenizers_by_name, name, skip_special):
    tokenizer = tokenizers_by_name[name]

    @settings(deadline=None, max_examples=150)
    @given(sequences(tokenizer, 20), sequences(tokenizer))
    def law(prompt, tokens):
        pieces = streamed(tokenizer, prompt, tokens, skip_special=skip_special)
        assert "".join(pieces) == continuation(tokenizer, prompt, tokens, skip_special=skip_special)

    law()


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_at_most_one_character_is_held(tokenizers_by_name, name):
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
def test_character_split_over_tokens_is_never_shown_in_halves(tokenizers_by_name, name):
    tokenizer = tokenizers_by_name[name]
    prompt, tokens = tokenizer.encode("x"), tokenizer.encode(SPLIT)
    assert len(tokens) > len(SPLIT), "characters must span several tokens"
    pieces = streamed(tokenizer, prompt, tokens)
    assert "".join(pieces).lstrip() == SPLIT and not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@pytest.mark.parametrize("skip_special", [True, False])
def test_special_tokens_inside_a_character_disturb_it_only_if_shown(tokenizers_by_name, name, skip_special):
    tokenizer = tokenizers_by_name[name]
    special = next(token for token in range(tokenizer.size) if tokenizer.is_special(token))
    text = tokenizer.decode([special], skip_special=False)
    first, *rest = inside(tokenizer, "🙂")
    pieces = streamed(tokenizer, tokenizer.encode("x"), [first, special, *rest], skip_special=skip_special)
    assert "".join(pieces) == ("🙂" if skip_special else REPLACEMENT + text + REPLACEMENT * 3)


def test_incomplete_character_waits_for_the_flush(tokenizer):
    tokens = tokenizer.encode("🙂")[:-1]
    *pieces, last = streamed(tokenizer, tokenizer.encode("x"), tokens)
    assert pieces == [""] * len(tokens) and last == REPLACEMENT


def test_characters_before_an_incomplete_one_are_kept(fallback):
    tokens = inside(fallback, "🙂🙂")[:-1]
    assert "".join(streamed(fallback, fallback.encode("a"), tokens)) == "🙂" + REPLACEMENT


def test_character_begun_in_the_prompt_is_completed(tokenizer):
    first, *rest = tokenizer.encode("é")
    assert streamed(tokenizer, [*tokenizer.encode("x"), first], rest)[0] == "é"


def test_character_that_the_prompt_leaves_broken_is_not_given_again(tokenizer):
    broken = tokenizer.encode("é")[:1]
    assert streamed(tokenizer, [*tokenizer.encode("x"), *broken], tokenizer.encode("a")) == ["a", ""]
    assert streamed(tokenizer, [*tokenizer.encode("x"), *broken], []) == [""]


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
def test_replacement_characters_that_are_meant_come_out(tokenizers_by_name, name):
    tokenizer = tokenizers_by_name[name]
    meant = inside(tokenizer, REPLACEMENT)
    stream = TextStream(tokenizer=tokenizer, prompt=tokenizer.encode("a"))
    assert "".join(stream.push(token) for token in meant * 40) == REPLACEMENT * 39
    assert stream.push(inside(tokenizer, "c")[0]) == REPLACEMENT + "c"


def test_bytes_that_are_never_completed_do_not_hold_the_stream(tokenizer):
    [stray] = [token for token in range(1, 257) if tokenizer.decode([token] * 3) == REPLACEMENT * 3][:1]
    stream = TextStream(tokenizer=tokenizer, prompt=[])
    assert [stream.push(stray) for _ in range(50)] == ["", *[REPLACEMENT] * 49]


def test_space_before_the_first_new_word_is_kept(tokenizers_by_name):
    tokenizer = tokenizers_by_name["metaspace"]
    assert tokenizer.decode([1, 2]) == "add sum", "alone, a text loses its leading space"
    assert streamed(tokenizer, [0], [1, 2]) == [" add", " sum", ""]


@pytest.mark.parametrize("name", ["byte level", "byte fallback", "metaspace"])
def test_tokens_without_text_do_not_touch_spaces(tokenizers_by_name, name):
    tokenizer = tokenizers_by_name[name]
    special = next(token for token in range(tokenizer.size) if tokenizer.is_special(token))
    prompt, tokens = tokenizer.encode("def"), tokenizer.encode("add sum")
    crowd = [special, tokenizer.size + 1] * 2 * LONGEST
    among = [each for token in tokens for each in (*crowd, token)]
    plain = "".join(streamed(tokenizer, prompt, tokens))
    assert "".join(streamed(tokenizer, [*prompt, *crowd], among)) == plain == continuation(tokenizer, prompt, tokens)


def test_special_tokens_are_shown_on_demand(tokenizers_by_name):
    tokenizer = tokenizers_by_name["byte fallback"]
    end = tokenizer.encode(END, special=False)[-1]
    tokens = [*tokenizer.encode("a b", special=False), end]
    assert "".join(streamed(tokenizer, tokenizer.encode("a"), tokens)) == " a b"
    assert streamed(tokenizer, tokenizer.encode("a"), tokens, skip_special=False)[-2:] == [END, ""]


def test_decoding_reads_few_tokens_however_long_the_text(tokenizer, monkeypatch):
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


def test_directory_with_tokenizer_json_alone_streams(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert "".join(streamed(tokenizer, [], tokenizer.encode(SPLIT))) == SPLIT
