import random

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from paceline.text.stream import REPLACEMENT, TextStream
from paceline.text.tokenizer import load_tokenizer
from tests.api.checkpoints import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def streamed(tokenizer, prompt, tokens):
    stream = TextStream(tokenizer=tokenizer, prompt=prompt)
    return [*(stream.push(token) for token in tokens), stream.flush()]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_add_up_to_the_text_of_any_tokens(tokenizer, seed):
    rng = random.Random(seed)
    tokens = [rng.randrange(tokenizer.size) for _ in range(80)]
    prompt = tokenizer.encode("for item in")
    whole = tokenizer.decode([*prompt, *tokens])[len("for item in") :]
    assert "".join(streamed(tokenizer, prompt, tokens)) == whole


def test_character_split_over_tokens_is_never_shown_in_halves(tokenizer):
    text = "a日本🙂é!"
    tokens = tokenizer.encode(text)
    assert len(tokens) > len(text), "characters must span several tokens"
    pieces = streamed(tokenizer, tokenizer.encode("x"), tokens)
    assert "".join(pieces) == text and not any(REPLACEMENT in piece for piece in pieces)


def test_incomplete_character_waits_for_the_flush(tokenizer):
    tokens = tokenizer.encode("🙂")[:-1]
    *pieces, last = streamed(tokenizer, tokenizer.encode("x"), tokens)
    assert pieces == [""] * len(tokens) and set(last) == {REPLACEMENT}


def test_character_begun_in_the_prompt_is_completed(tokenizer):
    first, *rest = tokenizer.encode("é")
    assert streamed(tokenizer, [*tokenizer.encode("x"), first], rest)[0] == "é"


def test_space_before_the_first_new_word_is_kept(tmp_path):
    words = {"\u2581def": 0, "\u2581add": 1, "\u2581sum": 2}
    inner = tokenizers.Tokenizer(models.WordLevel(words, unk_token="\u2581def"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode([1, 2]) == "add sum", "alone, a text loses its leading space"
    assert streamed(tokenizer, [0], [1, 2]) == [" add", " sum", ""]
