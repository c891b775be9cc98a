"""Tokenizers built from the vocabulary of a GGUF file encode and decode as the models' own."""

import json
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from paceline.text.gguf_splits import SPLITS
from paceline.text.gguf_vocabulary import Vocabulary, build_tokenizer
from paceline.text.tokenizer import load_tokenizer
from paceline.text.turns import TokenizerError
from tests.text.makers import UNUSUAL

LINES = [
    "def add(first, second):\n    return first + second  # 12 345 67890\n",
    "the café's naïve  user can't, DON'T and I'LL not;\n\n\t日本語 🙂 e\u0301 -- 1990 x1234\n",
    "HTTPServer isCamelCase ::: //// \r\n   three spaces\n",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = TEKKEN.replace(r"]+|[^", r"]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^").replace(
    r"]*|\p{N}|", r"]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
)
PUBLISHED = {"llama-bpe": LLAMA3, "dbrx": LLAMA3, "qwen2": PRETOKENIZE_REGEX, "tekken": TEKKEN, "gpt-4o": GPT4O}
TEXTS = st.text(
    st.sampled_from("  \n\t\r'abcdefgXYZ0123456789.,:/-#é\u0301日🙂Ⅷ²\u3000") | st.characters(codec="utf-8")
)


def published(name):
    """A byte-level tokenizer with the rules that models of this name have in their tokenizer.json."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if name in ("gpt-2", "olmo"):
        splits = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    elif name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        splits = [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        isolated = pre_tokenizers.Split(Regex(PUBLISHED[name]), behavior="isolated")
        splits = [isolated, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    if name in ("qwen2", "olmo"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LINES * 3, trainer)
    return tokenizer


def fields_of(tokenizer, **others):
    """What a GGUF file says of a byte-level tokenizer."""
    raw = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(raw["vocab"], key=raw["vocab"].get)
    merges = [" ".join(merge) for merge in raw["merges"]]
    return fields(tokens, model="gpt2", merges=merges, **others)


def fields(tokens, *, kinds=None, template=None, **others):
    found = {"tokens": tokens, "token_type": kinds or [1] * len(tokens), **others}
    return {
        **{f"tokenizer.ggml.{key}": value for key, value in found.items()},
        **({"tokenizer.chat_template": template} if template else {}),
    }


def built(found, name="file.gguf"):
    return build_tokenizer(Vocabulary(found, name), context=128)


@pytest.mark.parametrize("name", ["gpt-2", "olmo", "smollm", *PUBLISHED])
def test_texts_are_split_as_by_the_models_own_files(name):
    theirs = published(name)
    ours = built(fields_of(theirs, pre=name, add_bos_token=False)).backend_tokenizer

    @settings(max_examples=150, deadline=None)
    @given(TEXTS)
    def check(text):
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)

    check()
    for text in (*UNUSUAL, *LINES):
        assert ours.encode(text).ids == theirs.encode(text).ids


def test_a_word_that_is_a_token_is_not_merged_where_the_model_says_so():
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "abc"]  # which no merge makes
    for name, wanted in (("llama-bpe", ["abc"]), ("tekken", ["abc"]), ("dbrx", ["a", "b", "c"])):
        found = built(fields(tokens, model="gpt2", pre=name, merges=[])).backend_tokenizer
        assert found.encode("abc").tokens == wanted, name


def pieces():
    """A vocabulary as SentencePiece trains one: (tokens, kinds, scores), where later pieces have lower scores."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    trained.train_from_iterator(
        [f" {line}" for line in LINES], trainers.BpeTrainer(vocab_size=170, show_progress=False)
    )
    raw = json.loads(trained.to_str())["model"]
    merged = ["".join(merge) for merge in raw["merges"]]
    single = [token for token in raw["vocab"] if len(token) == 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *single]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(merged) + len(single))]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(merged) + len(single))]
    return tokens, kinds, scores


def by_scores(text, tokens, scores):
    """llama.cpp's loop: of the neighbours whose union is a token, those of the highest score, leftmost, are joined."""
    ids = {token: number for number, token in enumerate(tokens)}
    parts = list(text)
    while True:
        unions = [a + b for a, b in pairwise(parts)]
        pairs = [(scores[ids[union]], -at) for at, union in enumerate(unions) if union in ids]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    found = []
    for part in parts:
        found += [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return found


@pytest.mark.parametrize("prefixed", [True, False])
def test_pieces_are_joined_by_their_scores_and_others_become_bytes(prefixed):
    tokens, kinds, scores = pieces()
    options = dict(add_bos_token=False) if prefixed else dict(add_bos_token=False, add_space_prefix=False)
    tokenizer = built(fields(tokens, kinds=kinds, model="llama", scores=scores, **options)).backend_tokenizer

    def compare(text):
        marked = f"▁{text}" if prefixed and text else text
        found = tokenizer.encode(text).ids
        assert found == by_scores(marked.replace(" ", "▁"), tokens, scores)
        assert tokenizer.decode(found) == text

    for text in LINES:  # in which pieces compete
        compare(text)
    marks = ["▁", *(token for token, kind in zip(tokens, kinds, strict=True) if kind in (2, 3))]  # no text, but control
    plain = TEXTS.filter(lambda text: not any(mark in text for mark in marks))
    settings(max_examples=150, deadline=None)(given(plain)(compare))()


TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def test_special_tokens_template_and_padding_survive_in_the_directory(tmp_path):
    theirs = published("qwen2")
    raw = fields_of(theirs)
    count = len(raw["tokenizer.ggml.tokens"])
    added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", f"[PAD{count + 4}]", "<\uff5cend\uff5c>"]
    found = fields_of(theirs, pre="qwen2", eos_token_id=count + 2, padding_token_id=count, template=TEMPLATE)
    found["tokenizer.ggml.tokens"] = [*raw["tokenizer.ggml.tokens"], *added]
    found["tokenizer.ggml.token_type"] = [*[1] * count, 3, 3, 3, 4, 5, 3]
    vocabulary = Vocabulary(found, "file.gguf")
    build_tokenizer(vocabulary, context=128).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.template == TEMPLATE and tokenizer.inner.model_max_length == 128
    inner = tokenizer.inner
    assert (inner.eos_token_id, inner.pad_token_id, inner.bos_token_id) == (count + 2, count, None)
    assert vocabulary.ends() == [count + 2, count]
    text = "a<think>b<|im_end|>c<\uff5cend\uff5c>[PAD"
    ids = tokenizer.encode(text)
    assert [token for token in ids if token >= count] == [count + 3, count + 2, count + 5]
    assert tokenizer.decode(ids) == "a<think>bc[PAD" and tokenizer.decode(ids, skip_special=False) == text
    assert added[4] not in tokenizer.inner.get_vocab()
    chat = tokenizer.chat([{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert [chat[0], chat[-2]] == [count + 1, count + 2]


def test_beginning_and_end_are_added_as_the_file_says():
    tokens, kinds, scores = pieces()
    for options, before, after in (
        ({}, [1], []),
        (dict(add_bos_token=False, add_eos_token=True), [], [2]),
        (dict(bos_token_id=2, add_eos_token=True), [2], [2]),
    ):
        found = built(fields(tokens, kinds=kinds, model="llama", scores=scores, **options))
        ids = found.backend_tokenizer.encode("a").ids
        assert (ids[: len(before)], ids[len(ids) - len(after) :]) == (before, after)
        assert len(ids) == len(before) + len(after) + 1 or "▁a" not in tokens
    theirs = published("llama-bpe")
    for name, wanted in (("llama-bpe", True), ("dbrx", False)):
        found = built(fields_of(theirs, pre=name, bos_token_id=5)).backend_tokenizer.encode("a").ids
        assert (found[0] == 5) == wanted, name


def test_phi3s_special_tokens_take_the_space_behind_them():
    tokens, kinds, scores = pieces()
    found = fields([*tokens, "<|user|>"], kinds=[*kinds, 3], model="llama", scores=[*scores, 0.0])
    for name, wanted in (("Phi-3 mini", True), ("Other", False)):
        tokenizer = built({**found, "general.name": name}).backend_tokenizer
        assert (tokenizer.encode("<|user|> \na").ids == tokenizer.encode("<|user|>a").ids) == wanted


BROKEN = {
    "no vocabulary": ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"}, "file.gguf has no vocabulary"),
    "kind": (fields(["a"], model="bert"), "a vocabulary of the kind 'bert', not gpt2 or llama"),
    "splitting": (
        fields(["a"], model="gpt2", pre="viking"),
        r"rules called 'viking', which are not known; known",
    ),
    "no splitting": (fields(["a"], model="gpt2"), "rules called None"),
    "twice": (fields(["a", "b", "a"], model="gpt2", pre="gpt-2"), "has the token 'a' twice"),
    "merges": (fields(["a", "b"], model="gpt2", pre="gpt-2", merges=["a c"]), "has a broken vocabulary"),
    "scores": (fields(["a", "b"], model="llama", scores=[0.0]), "has no scores of its tokens"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_vocabulary_that_cannot_be_used_is_refused_with_the_way_out(name):
    found, message = BROKEN[name]
    with pytest.raises(TokenizerError, match=message) as refusal:
        built(found)
    assert str(refusal.value).endswith("give the directory of the model's own tokenizer by --tokenizer")


def test_all_splits_that_transformers_knows_too_are_its():
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    shared = SPLITS.keys() & mapping.GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert len(shared) >= 10
    for name in shared:
        assert SPLITS[name].expressions == (mapping.GGUF_PRE_TOKENIZER_SPLITS[name],), name
