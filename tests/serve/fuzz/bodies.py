"""Made-up bodies of requests for completions: those that the server has to take, and those that it has to refuse."""

import math
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.fuzz.cases import LENGTH, options, prompts

HUGE = st.sampled_from([10**9, 2**31, 2**63, 10**30, 10**400, -1, -(10**30)])
WORDS = st.text(max_size=6)
LISTS = st.sampled_from([[], [[]], [None], [{}], [1.5], ["x"], [-1], [10**30], [True]])
OTHER = st.sampled_from([{}, {"a": 1}, [], [1], "", "x", "1", True, 1.5, math.nan, math.inf, -math.inf, 10**400])
NOT_NUMBER = st.one_of(WORDS, LISTS, st.sampled_from([{}, True, False, math.nan]))
NOT_FLAG = st.one_of(WORDS, LISTS, st.sampled_from([{}, 0, 1, 2.0, "true", "yes"]))
NOT_COUNT = st.one_of(NOT_NUMBER, st.sampled_from([0.5, 1.0, -5, 10**400]))
NOT_IDS = st.one_of(LISTS.filter(bool), st.sampled_from([{"a": 1}, 5, 1.5, "x", [2**31], [1, -1], [1] * 5000]))
WRONG = {  # values that each field has to be refused for; null is the default of all
    "temperature": st.one_of(NOT_NUMBER, st.sampled_from([-1, math.inf, 10**400, 1e-320])),
    "top_p": st.one_of(NOT_NUMBER, st.sampled_from([0, -1, 2, 10**400])),
    "typical_p": st.one_of(NOT_NUMBER, st.sampled_from([0, 1.5])),
    "min_p": st.one_of(NOT_NUMBER, st.sampled_from([-0.1, 1.5])),
    "epsilon_cutoff": st.one_of(NOT_NUMBER, st.sampled_from([1, -1])),
    "eta_cutoff": st.one_of(NOT_NUMBER, st.sampled_from([1, -1])),
    "top_k": st.one_of(NOT_NUMBER, st.sampled_from([1.5, -2, 2**31, 10**400])),
    "seed": st.one_of(NOT_NUMBER, st.sampled_from([1.5, -2, 2**63, 10**400])),
    "max_tokens": st.one_of(NOT_COUNT, st.sampled_from([0, 10_000, 10**400])),
    "min_tokens": st.one_of(NOT_COUNT, st.sampled_from([10_000, 10**400])),
    "presence_penalty": st.one_of(NOT_NUMBER, st.sampled_from([2.1, -3, 10**400])),
    "frequency_penalty": st.one_of(NOT_NUMBER, st.sampled_from([2.1, -3, math.inf])),
    "repetition_penalty": st.one_of(NOT_NUMBER, st.sampled_from([0, -1, 1e-320, 1e300, math.inf])),
    "no_repeat_ngram_size": st.one_of(NOT_COUNT, st.sampled_from([2**31])),
    "ignore_eos": NOT_FLAG,
    "include_stop_str_in_output": NOT_FLAG,
    "skip_special_tokens": NOT_FLAG,
    "stop": st.sampled_from([5, True, {}, [""], [5], [None], ["x"] * 17, "x" * 257, "\ud800", ["\udfff"]]),
    "stop_token_ids": NOT_IDS,
    "suppress_tokens": NOT_IDS,
    "begin_suppress_tokens": NOT_IDS,
    "allowed_token_ids": st.one_of(NOT_IDS, st.sampled_from([[], [9999]])),
    "logit_bias": st.sampled_from(
        [
            5,
            "x",
            {"x": 1},
            {"1": "x"},
            {"1": math.nan},
            {"1": math.inf},
            {"1": 1e300},
            {"-1": 1},
            {"9999": 1},
            {"\u0663": 1},
            {" 1": 1},
            {"1_0": 1},
            {"9" * 5000: 1},
            {str(n): 1 for n in range(5000)},
            [[1, 2, 3]],
        ]
    ),
    "sequence_bias": st.sampled_from([5, "x", [[1, 2]], [[[], 1]], [[[1], "x"]], [[[9999], 1]], [[[1] * 65, 1]]]),
    "bad_words": st.sampled_from([5, {}, [""], [5], ["x" * 300], ["a"] * 300, "\ud800"]),
    "bad_words_ids": st.sampled_from([5, "x", [5], [[]], [[9999]], [[1] * 65], [[1]] * 300]),
    "structured_outputs": st.sampled_from(
        [
            5,
            "x",
            [],
            {},
            {"regex": "("},
            {"regex": 5},
            {"json": "{"},
            {"grammar": "x"},
            {"choice": []},
            {"a": 1},
            {"regex": "a", "choice": ["a"]},
            {"json": {"$ref": "#"}},
            {"json": {"$ref": "file:///etc/passwd"}},
            {"grammar": "start: start start"},
            {"regex": "\ud800"},
            {"regex": "a" * 70_000},
        ]
    ),
    "filter_order": st.one_of(WORDS, st.sampled_from([5, True, []])).filter(lambda word: word not in ("", "vllm")),
    "n": st.one_of(NOT_COUNT, st.sampled_from([0, 17, 10**400])),
    "logprobs": st.one_of(NOT_COUNT, st.sampled_from([21, 10**400])),
    "echo": NOT_FLAG,
    "stream": NOT_FLAG,
    "stream_options": st.sampled_from([5, "x", [], {"include_usage": 1}, {"include_usage": "x"}]),
    "model": st.one_of(st.sampled_from([5, [], {}, True, "\ud800"]), st.text(max_size=30)).filter(
        lambda x: x != "tiny"
    ),
    "priority": NOT_NUMBER,
    "prompt": st.sampled_from([5, {}, True, [], [[]], [-1], [9999], [None], [1.5], ["a", 1], "a" * 3000, "\ud800"]),
    "response_format": st.sampled_from([5, "x", {}, {"type": "xml"}, {"type": "json_schema"}, {"type": 5}]),
    "best_of": st.sampled_from([5, "x", []]),
    "suffix": st.sampled_from(["x", 5, []]),
    "use_beam_search": st.just(True),
    "detokenize": st.booleans(),
    "logits_processors": st.just(["os.system"]),
    "negative_prompt": st.just("a"),
    "prompt_embeds": st.just("gASVAAAA"),
    "chat_template": st.just("{{ ''.__class__.__mro__ }}"),
    "\ud800": st.just(1),
}


@dataclass(frozen=True)
class Request:
    """A body, what the same is offline, and the field that it is refused for; "" if it is taken."""

    body: dict
    prompt: list
    options: dict
    wrong: str = ""


def jsonable(options):
    """Keywords of SamplingParams as a body has them."""
    made = dict(options)
    if "sequence_bias" in made:
        made["sequence_bias"] = [[list(tokens), bias] for tokens, bias in made["sequence_bias"].items()]
    if "logit_bias" in made:
        made["logit_bias"] = {str(token): bias for token, bias in made["logit_bias"].items()}
    return made


@st.composite
def taken(draw):
    """Requests that the server has to take."""
    prompt, made = list(draw(prompts())), draw(options())
    made.pop("negative_prompt", None)  # not a field of requests
    made.pop("guidance_scale", None)  # needs an engine with twice the rows
    made["max_tokens"] = min(made["max_tokens"], LENGTH - len(prompt))
    made["min_tokens"] = min(made.get("min_tokens", 0), made["max_tokens"])
    body = {"prompt": prompt, **jsonable(made)}
    if draw(st.booleans()):
        body["stream"] = draw(st.booleans())
    if draw(st.booleans()):
        body |= {"user": "me", "model": "tiny", "stream_options": {"include_usage": draw(st.booleans())}}
    for name in draw(st.lists(st.sampled_from(sorted(WRONG)), max_size=2)):
        body.setdefault(name, None) if name not in NOT_NULL else None
    return Request(body, prompt, made)


NOT_NULL = ("n", "echo", "stream", "prompt", "priority", "\ud800", "prompt_embeds", "negative_prompt")


@st.composite
def refused(draw):
    """Requests with one field that is wrong."""
    request, name = draw(taken()), draw(st.sampled_from(list(WRONG)))
    return Request({**request.body, name: draw(WRONG[name])}, request.prompt, request.options, name)


requests = st.one_of(taken(), refused())
