"""Random cases: prompts with options of their own, for an engine of any drafter, verifier, tree and batch size."""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.fuzz.target import LETTERS, VOCAB, designs

NEVER = -float("inf")
MOST_TOKENS = 12
LENGTH = 32  # of a sequence, prompt included


@dataclass(frozen=True)
class Row:
    """A prompt, its options as keywords of SamplingParams, and after how many steps it is submitted."""

    prompt: tuple
    options: dict
    wait: int


@dataclass(frozen=True)
class Case:
    """Rows, and the engine that serves them."""

    design: tuple  # (drafter, verifier, shape)
    rows: tuple
    batch_size: int
    num_draft_tokens: int
    eager: bool


token = st.integers(0, VOCAB - 1)
tokens = st.lists(token, min_size=1, max_size=4)
many = st.lists(token, min_size=1, max_size=VOCAB, unique=True)
value = st.one_of(st.integers(-48, 48).map(lambda eighths: eighths / 8), st.just(NEVER))  # exact in single precision
likely = st.sampled_from([float("-inf"), 6.0, 3.0, -3.0])
word = st.text(LETTERS, min_size=1, max_size=3)
penalty = st.one_of(st.floats(-2, 2), st.sampled_from([-2.0, 2.0, 0.5]))

OPTIONS = {
    "top_k": st.sampled_from([-1, 1, 2, 5, 11, VOCAB, 1000]),
    "top_p": st.one_of(st.floats(0.01, 1), st.sampled_from([0.3, 0.9])),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(0.05, 1),
    "epsilon_cutoff": st.floats(0, 0.2),
    "eta_cutoff": st.floats(0, 0.2),
    "filter_order": st.sampled_from(["vllm", "transformers"]),
    "n": st.integers(1, 3),
    "min_tokens": st.integers(0, MOST_TOKENS),
    "logprobs": st.sampled_from([0, 1, 3, 20]),
    "stop": st.one_of(word, st.lists(word, min_size=1, max_size=6)),
    "stop_token_ids": st.lists(token, min_size=1, max_size=6),
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "presence_penalty": penalty,
    "frequency_penalty": penalty,
    "repetition_penalty": st.one_of(st.floats(0.5, 3), st.sampled_from([1.3, 10.0])),
    "logit_bias": st.dictionaries(token, value, max_size=12),
    "allowed_token_ids": many,
    "bad_words": st.lists(word, max_size=6),
    "no_repeat_ngram_size": st.integers(0, 4),
    "suppress_tokens": many,
    "begin_suppress_tokens": many,
    "bad_words_ids": st.lists(st.one_of(tokens, tokens.map(lambda ids: ids[-1:])), max_size=8),
    "sequence_bias": st.dictionaries(tokens.map(tuple), likely, max_size=8),
    "guidance_scale": st.sampled_from([0.0, 0.5, 1.0, 1.7, -1.0]),
    "negative_prompt": tokens,
}
ALWAYS = ("temperature", "seed")
# Those that a user meets everywhere: none of them may ever be refused.
COMMON = (
    *ALWAYS,
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "sequence_bias",
    "min_tokens",
    "logprobs",
    "n",
    "stop",
    "stop_token_ids",
)


@st.composite
def options(draw):
    """Some of the options, together with those that every request has."""
    names = draw(st.lists(st.sampled_from(list(OPTIONS)), min_size=1, max_size=9, unique=True))
    made = {name: draw(OPTIONS[name]) for name in names}
    if "negative_prompt" in made and made.get("guidance_scale", 1.0) == 1.0:
        made["guidance_scale"] = 1.7  # alone it would be refused, as it should
    made["temperature"] = draw(st.sampled_from([0.0, 0.0, 0.6, 1.0, 1.0, 1.7]))
    made["seed"] = draw(st.one_of(st.none(), st.integers(0, 2**63 - 1), st.just(0)))
    made["max_tokens"] = draw(st.integers(max(1, made.get("min_tokens", 0)), MOST_TOKENS))
    return made


@st.composite
def prompts(draw):
    """Of any length, letters that come again among them; some begin alike."""
    beginning = draw(st.sampled_from([(), (), (5, 9, 2, 5, 9), (8, 8, 8, 8, 8, 8, 8)]))
    return (*beginning, *draw(st.lists(token, min_size=0 if beginning else 1, max_size=8)))


@st.composite
def cases(draw, among=None):
    """Two to four rows of different options under one engine; its drafter is ``among`` these names (None: all)."""
    known = [design for design in designs() if among is None or design[0] in among]
    count = draw(st.integers(2, 4))
    rows = [Row(draw(prompts()), draw(options()), draw(st.sampled_from([0, 0, 0, 1, 3]))) for _ in range(count)]
    return Case(
        design=draw(st.sampled_from(known)),
        rows=tuple(rows),
        batch_size=draw(st.integers(1, 4)),
        num_draft_tokens=draw(st.integers(1, 4)),
        eager=draw(st.booleans()),
    )
