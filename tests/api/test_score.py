"""Scores of continuations, prompts and texts match transformers; invalid calls are refused."""

import json
import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from tokenizers import processors

from paceline.api.loading import load
from paceline.api.score import perplexity, prompt_logprobs, score, windows
from tests import tiny
from tests.api.checkpoints import CONTEXT, EOS, VOCAB, make_tokenizer, pair, without_tokenizer
from tests.models.layouts import plain

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SMALL = 24  # context of the model that long texts are tried on


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


@pytest.fixture(scope="module")
def model():
    """The transformers model of ``target``."""
    return tiny.llama(vocab_size=VOCAB, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    folder = without_tokenizer(tmp_path_factory.mktemp("bare"), max_position_embeddings=SMALL)
    return load(folder, device="cpu")


@pytest.fixture(scope="module")
def beginning(tmp_path_factory):
    """A target whose tokenizer adds a beginning-of-text token and has a chat template."""
    folder = without_tokenizer(tmp_path_factory.mktemp("beginning"))
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", pair="<|end|> $A $B", special_tokens=[("<|end|>", EOS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT}))
    return load(folder, device="cpu")


def naive(model, tokens, first):
    """Log-probabilities of ``tokens`` from ``first`` on, by one plain forward of transformers."""
    probs = plain(model, list(tokens)).log_softmax(-1)
    return [float(probs[at - 1, tokens[at]]) for at in range(first, len(tokens))]


def tokens_of(*lengths, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def test_scores_equal_transformers_for_a_ragged_batch_in_the_order_given(target, model):
    prompts, continuations = tokens_of(3, 40, 1, 300, 7), tokens_of(20, 1, 5, 12, 200, seed=4)
    found = score(target, prompts, continuations, top=2)
    for prompt, continuation, one in zip(prompts, continuations, found, strict=True):
        assert one.prompt_tokens == tuple(prompt) and one.tokens == tuple(continuation)
        expected = naive(model, [*prompt, *continuation], len(prompt))
        assert one.logprobs == pytest.approx(expected, abs=1e-4)
        assert one.num_tokens == len(continuation)
        assert one.total == pytest.approx(sum(expected), abs=1e-2)
        assert one.perplexity == pytest.approx(math.exp(-one.total / len(continuation)))
        assert [len(best) for best in one.top] == [2] * len(continuation)
        assert all(best[0][1] >= best[1][1] for best in one.top)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batch_size_does_not_change_scores(target, batch_size):
    prompts, continuations = tokens_of(3, 40, 1, 30, 7), tokens_of(20, 1, 5, 12, 50, seed=4)
    for one, other in zip(
        score(target, prompts, continuations),
        score(target, prompts, continuations, batch_size=batch_size),
        strict=True,
    ):
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-9) and other.greedy == one.greedy


def test_greedy_is_true_if_every_token_is_the_argmax(target, model):
    text = tokens_of(4)[0]
    for _ in range(8):
        text.append(int(plain(model, text)[-1].argmax()))
    prompt, best = text[:4], text[4:]
    other = [*best[:7], best[7] - 1]
    found = score(target, [prompt] * 3, [best, other, best[:1]], top=1)
    assert [one.greedy for one in found] == [True, False, True]
    assert [token for ((token, _),) in found[0].top] == best
    assert [logprob for ((_, logprob),) in found[0].top] == list(found[0].logprobs)


def test_one_prompt_takes_one_continuation_without_lists(target):
    assert score(target, "def add(", "first") == score(target, ["def add("], ["first"])
    assert score(target, [5, 6], [7, 8]) == score(target, [[5, 6]], [[7, 8]])
    with pytest.raises(FrozenInstanceError):
        score(target, [5], [6])[0].greedy = True


def test_text_is_encoded_together_with_its_prompt(target):
    one = score(target, "def add(first,", " second):\n    return")[0]
    assert [*one.prompt_tokens, *one.tokens] == target.tokenizer.encode("def add(first, second):\n    return")


def test_text_is_encoded_alone_if_a_token_would_span_the_border(target):
    prompt, continuation = "def add(first, sec", "ond)"
    before, whole = (target.tokenizer.encode(text) for text in (prompt, prompt + continuation))
    assert whole[: len(before)] != before
    one = score(target, prompt, continuation)[0]
    assert list(one.prompt_tokens) == before
    assert list(one.tokens) == target.tokenizer.encode(continuation)


def test_text_after_tokens_or_messages_gets_no_special_tokens(beginning):
    own = beginning.tokenizer.encode("first", special=False)
    assert EOS not in own
    messages = [{"role": "user", "content": "add"}]
    for prompt in ([7, 8], messages):
        one = score(beginning, prompt, "first")[0]
        assert list(one.tokens) == own
    assert list(one.prompt_tokens) == beginning.tokenizer.chat(messages)
    assert list(score(beginning, "def add(", "first")[0].tokens) == own


@pytest.mark.parametrize("prompt", [None, "", [None]], ids=repr)
def test_missing_prompt_is_the_beginning_of_text_token(beginning, prompt):
    one = score(beginning, prompt, "def add(" if not isinstance(prompt, list) else ["def add("])[0]
    assert one.prompt_tokens == (EOS,)
    assert list(one.tokens) == beginning.tokenizer.encode("def add(", special=False)


def test_prompt_logprobs_are_of_every_token_but_the_first(target, model):
    prompts = tokens_of(30, 1, 2)
    for prompt, one in zip(prompts, prompt_logprobs(target, prompts, top=3), strict=True):
        assert one.tokens == tuple(prompt)
        assert one.logprobs[0] is None and one.top[0] is None
        assert one.logprobs[1:] == pytest.approx(naive(model, prompt, 1), abs=1e-4)
        assert [len(best) for best in one.top[1:]] == [3] * (len(prompt) - 1)
    text = prompt_logprobs(target, "def add(")[0]
    assert list(text.tokens) == target.tokenizer.encode("def add(") and text.top[1:] == ((),) * (len(text.tokens) - 1)


@pytest.mark.parametrize("stride", [1, 5, SMALL // 2, SMALL - 1])
@pytest.mark.parametrize("length", [2, SMALL - 1, SMALL, SMALL + 1, 2 * SMALL, 101])
def test_windows_score_every_token_once_with_enough_context(length, stride):
    scored = []
    for begin, first, end in windows(length, SMALL, stride):
        assert 0 <= begin < first < end <= length and end - begin <= SMALL
        for at in range(first, end):
            assert at - begin >= min(at, SMALL - stride)
        scored += range(first, end)
    assert scored == list(range(1, length))


@pytest.mark.parametrize("stride", [None, 7])
def test_perplexity_of_long_texts_matches_naive_windows(bare, stride):
    model = tiny.llama(vocab_size=VOCAB, max_position_embeddings=SMALL)
    texts = tokens_of(90, 2, SMALL, SMALL + 1)
    step = stride or SMALL // 2
    logs = []
    for text in texts:
        found = {}
        for end in [SMALL, *range(SMALL + step, len(text) + step, step)]:
            begin = max(0, min(end, len(text)) - SMALL)
            window = text[begin:end]
            fresh = [at for at in range(1, len(window)) if begin + at not in found]
            found.update({begin + at: naive(model, window, at)[0] for at in fresh})
        assert sorted(found) == list(range(1, len(text)))
        logs.append(list(found.values()))
    result = perplexity(bare, texts, stride=stride)
    for text, own in zip(result.texts, logs, strict=True):
        assert text.num_tokens == len(own)
        assert text.perplexity == pytest.approx(math.exp(-sum(own) / len(own)), rel=1e-4)
    every = [log for own in logs for log in own]
    assert result.num_tokens == len(every)
    assert result.total == pytest.approx(sum(every), abs=1e-2)
    assert result.perplexity == pytest.approx(math.exp(-sum(every) / len(every)), rel=1e-4)


def test_perplexity_weighs_tokens_and_not_texts(bare):
    long, short = tokens_of(60, 2)
    both = perplexity(bare, [long, short])
    alone = [perplexity(bare, text) for text in (long, short)]
    assert both.total == pytest.approx(sum(one.total for one in alone), abs=1e-9)
    assert both.num_tokens == 59 + 1
    assert both.perplexity == pytest.approx(math.exp(-both.total / 60))


def test_perplexity_of_strings_is_that_of_their_tokens(target):
    texts = ["def add(first, second):", "for item in items:"]
    tokens = [target.tokenizer.encode(text) for text in texts]
    assert perplexity(target, texts) == perplexity(target, tokens)
    assert perplexity(target, texts[0]) == perplexity(target, [tokens[0]])


REFUSED = [
    (dict(c=[[7], []]), "prompt 1: empty continuation: give at least one token"),
    (dict(p=["x", "x"], c=["x", ""]), "prompt 1: empty continuation"),
    (dict(p=[[5], []]), "prompt 1: empty prompt: give at least one token"),
    (dict(p=[[5], None]), "prompt 1: empty prompt: .*beginning-of-text"),
    (dict(c=[[7]]), "1 continuations for 2 prompts: give each prompt one; .* repeat the prompt"),
    (dict(c=[]), "0 continuations for 2 prompts"),
    (dict(p=[]), "no prompts: give at least one"),
    (dict(c=[[7], [VOCAB]]), rf"prompt 1: token id {VOCAB} is outside .* of {VOCAB}"),
    (dict(p=[[5], [6, -1]]), "prompt 1: token id -1 is outside"),
    (
        dict(c=[[7], [7] * CONTEXT]),
        rf"prompt 1: {CONTEXT + 1} tokens in all are more than the context of {CONTEXT}; shorten .* perplexity",
    ),
    (
        dict(c=[[7], [{"role": "user", "content": "x"}]]),
        "prompt 1: its continuation is a list of messages: give a text or token ids",
    ),
    (dict(c=[[7], None]), "prompt 1: continuation: None is not a prompt"),
    (dict(top=VOCAB + 1), f"top={VOCAB + 1}: give 0"),
    (dict(batch_size=0), "batch_size=0: give at least 1"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_invalid_call_names_the_prompt_before_any_work(target, options, message, monkeypatch):
    given = {"p": [[5], [6]], "c": [[7], [8]], **options}
    monkeypatch.setattr(type(target.lm), "forward", None)  # any work would call it
    with pytest.raises(ValueError, match=message):
        score(target, given.pop("p"), given.pop("c"), **given)


def test_text_without_a_tokenizer_is_refused_with_the_way_out(bare):
    for prompt, continuation in (("x", [5]), ([5], "x")):
        with pytest.raises(ValueError, match=r"prompt 1: .* has no tokenizer: give the .* as token ids"):
            score(bare, [[5], prompt], [[5], continuation])
    with pytest.raises(ValueError, match="prompt 0: empty prompt"):
        score(bare, None, [5])


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([[5, 6], [5]], {}, "text 1: one token alone has nothing before it: give at least two"),
        ([[5, 6], []], {}, "text 1: empty"),
        ([[5, 6], "x"], {}, "text 1: .* has no tokenizer"),
        ([[5, 6], [5, VOCAB]], {}, f"text 1: token id {VOCAB} is outside"),
        ([[5, 6]], dict(stride=0), f"stride=0: give 1 to {SMALL - 1}"),
        ([[5, 6]], dict(stride=SMALL), f"stride={SMALL}: give 1 to {SMALL - 1}, less than the context of {SMALL} tok"),
        ([[5, 6]], dict(batch_size=0), "batch_size=0: give at least 1"),
    ],
)
def test_invalid_perplexity_calls_are_refused(bare, texts, options, message):
    with pytest.raises(ValueError, match=message):
        perplexity(bare, texts, **options)


def test_invalid_prompts_are_refused_by_number(target):
    with pytest.raises(ValueError, match=f"prompt 1: {CONTEXT + 1} tokens in all are more than the context"):
        prompt_logprobs(target, [[5], [5] * (CONTEXT + 1)])
    with pytest.raises(ValueError, match="prompt 0: token id 999 is outside"):
        prompt_logprobs(target, [[5, 999]])


def test_overflowing_perplexity_is_infinite(target):
    one = score(target, [5], [6])[0]
    assert type(one)(prompt_tokens=(5,), tokens=(6,), logprobs=(-1e4,), top=((),), greedy=False).perplexity == math.inf
