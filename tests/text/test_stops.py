"""Stop strings end streamed text, whatever its split, and partial matches are held back."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.text.stops import StopStrings

stop_lists = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)
texts = st.text("abc", max_size=30)
cut_texts = st.lists(st.tuples(st.text("abc", max_size=5), st.booleans()), max_size=12)  # pieces, armed or not


def naive(stops, text, armed, include):
    """The specification: the first armed character that completes a stop string, and the longest such string."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if armed[end - 1] and text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def partial_match_length(stops, text):
    """Length of the longest suffix of ``text`` that is a proper prefix of a stop string."""
    lengths = [size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])]
    return max(lengths, default=0)


@settings(deadline=None, max_examples=400)
@given(stop_lists, cut_texts, st.booleans())
def test_result_does_not_depend_on_the_split_of_the_text(stops, pieces, include):
    text = "".join(piece for piece, _ in pieces)
    armed = [flag for piece, flag in pieces for _ in piece]
    whole, matched = naive(stops, text, armed, include)
    filtered = StopStrings(stops=stops, include=include)
    shown = "".join(filtered.push(piece, armed=flag) for piece, flag in pieces) + filtered.flush()
    assert (shown, filtered.matched) == (whole, matched)
    letters = StopStrings(stops=stops, include=include)
    shown = "".join(letters.push(letter, armed=flag) for letter, flag in zip(text, armed, strict=True))
    assert (shown + letters.flush(), letters.matched) == (whole, matched)


@settings(deadline=None, max_examples=300)
@given(stop_lists, st.lists(texts, max_size=8))
def test_only_partial_matches_are_held_back(stops, pieces):
    stream = StopStrings(stops=stops)
    shown = seen = ""
    for piece in pieces:
        shown, seen = shown + stream.push(piece), seen + piece
        assert not any(stop in shown for stop in stops)
        if stream.matched is None:
            assert shown == seen[: len(seen) - partial_match_length(stops, seen)]
        else:
            assert (shown, stream.matched) == naive(stops, seen, [True] * len(seen), False)


@pytest.mark.parametrize(
    ("stops", "text", "shown", "matched"),
    [
        (["abcd", "bc"], "abcx", "a", "bc"),  # the string that starts first never completes
        (["abcd", "bc"], "abcd", "a", "bc"),  # the first to complete, not the first to start
        (["bc", "abc"], "xabc", "x", "abc"),  # the longest of those that complete together
        (["abc", "bc"], "xabc", "x", "abc"),
        (["ab", "abc"], "xabc", "x", "ab"),
        (["aab"], "aaab", "a", "aab"),
        (["\n\n", "###"], "one\ntwo\n\n###", "one\ntwo", "\n\n"),
        (["日本"], "東日本", "東", "日本"),
        ([], "any", "any", None),
        (["zz"], "fizz", "fi", "zz"),
        (["zz"], "fiz", "fiz", None),
    ],
)
def test_first_completed_stop_string_ends_the_text(stops, text, shown, matched):
    stream = StopStrings(stops=stops)
    assert stream.push(text) + stream.flush() == shown and stream.matched == matched
    including = StopStrings(stops=stops, include=True)
    assert including.push(text) + including.flush() == shown + (matched or "") and including.matched == matched


def test_nothing_is_returned_after_a_match():
    stream = StopStrings(stops=["."])
    assert stream.push("end.more") == "end"
    assert [stream.push("again."), stream.flush(), stream.matched] == ["", "", "."]


def test_stop_string_that_completes_unarmed_does_not_match():
    stream = StopStrings(stops=["ab"])
    assert stream.push("xab", armed=False) == "xab", "no partial match is left to hold back"
    assert [stream.push("ya"), stream.push("b!"), stream.matched] == ["y", "", "ab"]


def test_stop_string_that_starts_unarmed_can_complete_later():
    stream = StopStrings(stops=["abc"])
    assert [stream.push("xab", armed=False), stream.push("c"), stream.matched] == ["x", "", "abc"]


def test_failed_partial_match_is_returned():
    stream = StopStrings(stops=["stop"])
    assert [stream.push("sto"), stream.push("re"), stream.push("s"), stream.flush()] == ["", "store", "", "s"]


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        (["a", ""], r"stops\[1\] is empty .* leave it out"),
        ("abc", r"stops='abc' is one string: give a list"),
        ([7], r"stops\[0\] is 7: give stop strings"),
    ],
)
def test_invalid_stops_are_refused(stops, message):
    with pytest.raises(ValueError, match=message):
        StopStrings(stops=stops)


def test_time_is_linear_in_the_length_of_the_text():
    stops = ["a" * 400 + "b", "a" * 300 + "c"]  # quadratic for a comparison at every character

    def seconds(length):
        stream = StopStrings(stops=stops)
        begun = time.perf_counter()
        stream.push("a" * length)
        return time.perf_counter() - begun

    assert min(seconds(80_000) for _ in range(3)) < 64 * min(seconds(5_000) for _ in range(3))
