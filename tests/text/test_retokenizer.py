"""Vocabularies compared by their bytes, and texts exchanged between tokenizers without a byte twice or lost."""

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from paceline.text.intersection import SAMPLE, intersect, match_special, read_special
from paceline.text.pieces import read_pieces
from paceline.text.retokenizer import Retokenizer
from tests.api.checkpoints import TEXT, make_tokenizer
from tests.text import makers

WORDS = ["the quick brown fox jumps over the lazy dog", "return first + second", "naïve 日本語 🙂 can't"]


def sentencepiece():
    """BPE with byte fallback, trained, whose words begin with a marker."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", makers.BOS, makers.END, *fallback], show_progress=False
    )
    tokenizer.train_from_iterator([*TEXT, WORDS[0], WORDS[1]], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [one for one in data["added_tokens"] if not one["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))


MAKERS = {
    "byte level": lambda: make_tokenizer(),
    "other merges": lambda: make_tokenizer(330, WORDS),
    "sentencepiece": sentencepiece,
    "byte fallback": lambda: makers.byte_fallback(adds_bos=True),
    "added": lambda: makers.byte_level(specials=["<|user|>"], plain=["<think>", "    "]),
}


@cache
def tokenizer(name):
    folder = Path(tempfile.mkdtemp(prefix="paceline-tests-"))
    settings = {"bos_token": "<s>", "eos_token": "</s>"} if name in ("sentencepiece", "byte fallback") else None
    return makers.saved(folder, MAKERS[name](), settings=settings or {"eos_token": "<|end|>"})


both = pytest.mark.parametrize(
    ("target", "draft"), [(one, other) for one in MAKERS for other in MAKERS if one != other]
)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("text", [*WORDS, *TEXT, SAMPLE, " a  b\n\n   c\t🙂"])
def test_pieces_are_the_bytes_of_the_text(name, text):
    one = tokenizer(name)
    data = read_pieces(one).bytes_of(one.encode(text, special=False))
    assert data in (text.encode(), b" " + text.encode())


def test_spaces_bytes_and_special_tokens_are_distinguished():
    pieces = read_pieces(tokenizer("byte fallback"))
    assert pieces.text[pieces.ids[b" the"]] == b" the" and pieces.text[3 + 0x41] == b"A"
    assert pieces.ids[b"a"] != 3 + ord("a"), "an ordinary token before one of byte fallback"
    assert pieces.ids[b" "] != 3 + ord(" ") and pieces.special[1] == "<s>" and pieces.first == 1
    level = read_pieces(tokenizer("added"))
    assert level.special[0] == "<|end|>" and level.ids[b"<think>"] and level.ids[b"\xf0"]


@both
def test_the_intersection_is_injective_and_spells_every_token(target, draft):
    one, other = tokenizer(target), tokenizer(draft)
    theirs, ours = read_pieces(one), read_pieces(other)
    found = intersect(one, other, target_size=one.size, draft_size=other.size)
    used = [token for token in found.target_ids if token != -1]
    assert len(set(used)) == len(used)
    for own, token in enumerate(found.target_ids):
        if token in theirs.text:
            assert theirs.text[token] == ours.text[own]
    special = match_special(theirs, ours)
    for token, data in theirs.text.items():
        if token not in used:
            spelled = ours.bytes_of(found.spellings[token])
            assert spelled == data or data.endswith(spelled)
    assert set(found.spellings) | set(used) >= set(theirs.text) | set(special)


def test_ids_beyond_the_models_vocabularies_are_left_out():
    one, other = tokenizer("byte level"), tokenizer("other merges")
    found = intersect(one, other, target_size=100, draft_size=120)
    assert len(found.target_ids) == 120 and max(found.target_ids) < 100
    assert all(max(ids) < 120 for ids in found.spellings.values()) and max(found.spellings, default=0) < 100
    padded = intersect(one, other, target_size=999, draft_size=400)
    assert len(padded.target_ids) == 400 and padded.num_tokens == 297 - 1


def test_special_tokens_are_matched_by_text_and_role_alone():
    level, pieces = tokenizer("byte level"), tokenizer("sentencepiece")
    one, other = read_pieces(level), read_pieces(pieces)
    assert match_special(one, other) == {0: 2}, "end of text"
    assert match_special(other, one) == {2: 0} and read_special(other, one) == {1: 0, 2: 0}
    found = intersect(level, pieces, target_size=level.size, draft_size=pieces.size)
    assert found.target_ids[2] == 0 and found.target_ids[1] == -1 and found.first == 1


TEXTS = st.text(st.sampled_from("abcdefi ofx\n'tné日🙂\t  thequr"), min_size=1, max_size=60)


@both
def test_nothing_is_inserted_twice_or_lost_at_a_seam(target, draft):
    one, other = tokenizer(target), tokenizer(draft)
    theirs, ours = read_pieces(one), read_pieces(other)
    made = Retokenizer(target=one, draft=other, target_size=one.size, draft_size=other.size)

    @settings(max_examples=25, deadline=None, database=None)
    @given(TEXTS, st.lists(st.integers(1, 9), max_size=9), TEXTS)
    def check(text, cuts, more):
        sequence = one.encode(text, special=False)
        into, at = made.begin(), 0
        for cut in (*cuts, len(sequence)):
            at = min(len(sequence), at + cut)
            if not at:
                continue
            made.read(into, sequence[:at])
            assert ours.bytes_of(into.tokens) + into.rest == theirs.bytes_of(sequence[:at])
            assert into.tokens.count(ours.first) <= 1 if ours.first is not None else True
        drafted = other.encode(more, special=False)
        answer = made.drafted(sequence, into, drafted)
        data = ours.bytes_of(drafted)
        if not into.rest:
            assert theirs.bytes_of(answer) == data
        elif answer:
            assert into.rest + theirs.bytes_of(answer) == data

    check()


@pytest.mark.parametrize("name", MAKERS)
def test_a_text_that_grows_is_tokenized_as_it_is_in_one_piece(name):
    """Else the draft would read what it has never seen in training."""
    one, other = tokenizer("byte level"), tokenizer(name)
    made = Retokenizer(target=one, draft=other, target_size=one.size, draft_size=other.size)
    text = " the quick brown fox" * 9 + SAMPLE
    sequence, into = one.encode(text, special=False), made.begin()
    for at in range(1, len(sequence) + 1, 3):
        made.read(into, sequence[:at])
    made.read(into, sequence)
    whole = made.begin()
    made.read(whole, sequence)
    assert into.tokens == whole.tokens
    own = other.encode(text, special=False)
    skipped = int(other.decode(own[:1]).strip() == "" and own[0] != whole.tokens[int(whole.first is not None)])
    assert whole.tokens[int(whole.first is not None) + 3 :][-100:] == own[skipped:][-100:]


def test_an_incomplete_character_is_continued_by_the_draft_alone():
    one, other = tokenizer("byte level"), tokenizer("sentencepiece")
    made = Retokenizer(target=one, draft=other, target_size=one.size, draft_size=other.size)
    sequence, into = one.encode("fox 日", special=False), made.begin()
    made.read(into, sequence[:-1])
    assert into.rest == "日".encode()[:2]
    fallback = [other.inner.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "日".encode()]
    assert made.drafted(sequence[:-1], into, fallback) == sequence[-1:]
    assert made.drafted(sequence[:-1], into, other.encode("x", special=False)) == []
    assert made.drafted(sequence[:-1], into, fallback[:2]) == [], "not a whole character"


def test_a_drafted_end_of_text_is_the_targets():
    one, other = tokenizer("byte level"), tokenizer("sentencepiece")
    made = Retokenizer(target=one, draft=other, target_size=one.size, draft_size=other.size)
    sequence, into = one.encode("the quick"), made.begin()
    made.read(into, sequence)
    drafted = [*other.encode(" fox", special=False), 2, *other.encode(" fox", special=False)]
    assert made.drafted(sequence, into, drafted)[-1] == 0
    assert made.drafted(sequence, into, [2]) == [0]


def test_special_tokens_are_barriers_and_others_are_read_as_they_are_written():
    one, other = tokenizer("added"), tokenizer("sentencepiece")
    made = Retokenizer(target=one, draft=other, target_size=one.size, draft_size=other.size)
    user = one.encode("<|user|>", special=False)
    assert len(user) == 1
    into = made.begin()
    made.read(into, [*one.encode("a fox", special=False), 0, *user, *one.encode("fox", special=False)])
    pieces, end = read_pieces(other), into.tokens.index(2)
    assert pieces.bytes_of(into.tokens[:end]) == b"a fox" and into.tokens[0] == 1
    assert pieces.bytes_of(into.tokens[end + 1 :]) == b"<|user|>fox"
