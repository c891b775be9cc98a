"""Sampling parameters as keywords, targets by directory and from memory, and the messages for wrong arguments."""

from dataclasses import fields
from typing import get_type_hints

import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import paceline
from paceline.api import Engine, SamplingParams, Session, generate, load, sampling_options, stream
from paceline.api.sampling_options import ELSEWHERE, SamplingOptions
from paceline.hf.options import OPTIONS
from tests import tiny
from tests.api.checkpoints import pair

GREEDY = dict(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


@pytest.fixture(scope="module")
def expected(target):
    return [result.token_ids for result in generate(target, ["x", "def add("], SamplingParams(**GREEDY))]


def test_keywords_are_the_sampling_parameters_with_their_types():
    assert get_type_hints(SamplingOptions) == {
        field.name: get_type_hints(SamplingParams)[field.name] for field in fields(SamplingParams)
    }


def test_keywords_give_the_tokens_of_the_parameters(target, expected):
    def tokens(results):
        return [result.token_ids for result in results]

    prompts = ["x", "def add("]
    assert tokens(generate(target, prompts, **GREEDY)) == expected
    assert tokens(generate(target, prompts, SamplingParams(max_tokens=6, ignore_eos=True), temperature=0)) == expected
    each = [SamplingParams(temperature=0, ignore_eos=True)] * 2
    assert tokens(generate(target, prompts, each, max_tokens=6)) == expected
    assert tokens(stream(target, prompts, **GREEDY).drain()) == expected
    engine = Engine(target, batch_size=2, max_length=64)
    assert tokens(engine.generate(prompts, **GREEDY)) == expected
    assert tokens(engine.submit(prompts, **GREEDY).drain()) == expected
    session = Session(target, max_length=64)
    assert session.send("x", **GREEDY).token_ids == expected[0]
    assert tuple(piece.token for piece in Session(target, max_length=64).stream("x", **GREEDY)) == expected[0]


@pytest.mark.parametrize("kind", ["directory", "text", "model with tokenizer", "model of a directory"])
def test_target_may_be_a_directory_or_a_model(kind, expected):
    model = AutoModelForCausalLM.from_pretrained(pair().target, dtype="auto")
    given, options = {
        "directory": (pair().target, {}),
        "text": (str(pair().target), {}),
        "model with tokenizer": (
            model,
            {"tokenizer": PreTrainedTokenizerFast(tokenizer_file=str(pair().target / "tokenizer.json"))},
        ),
        "model of a directory": (model, {}),
    }[kind]
    if kind == "model with tokenizer":
        model.config._name_or_path = ""
    found = paceline.generate(given, ["x", "def add("], **GREEDY, **options)
    assert [result.token_ids for result in found] == expected and found[0].text
    if not options:
        assert Engine(given, max_length=64).generate("x", **GREEDY)[0].token_ids == expected[0]
        assert Session(given, max_length=64).send("x", **GREEDY).token_ids == expected[0]


def test_end_of_text_of_a_model_is_read_at_every_call():
    model = tiny.llama()
    [whole] = generate(model, [[5, 9, 2]], max_tokens=9, temperature=0)
    assert len(whole.token_ids) == 9
    model.generation_config.eos_token_id = whole.token_ids[3]
    [ended] = generate(model, [[5, 9, 2]], max_tokens=9, temperature=0)
    assert ended.token_ids == whole.token_ids[: whole.token_ids.index(whole.token_ids[3]) + 1]


UNKNOWN = [
    ("temprature", r"generate\(\) has no keyword 'temprature': did you mean temperature\?"),
    ("max_token", "did you mean max_tokens"),
    ("verifer", "did you mean verifier"),
    ("max_new_tokens", r"generate\(\) has no keyword 'max_new_tokens': give max_tokens$"),
    ("do_sample", "'do_sample': give temperature, where 0 is greedy"),
    ("stop_sequences", "'stop_sequences': give stop$"),
    ("assistant_model", "'assistant_model': give drafter$"),
    ("device", r"'device': give paceline.load\(..., dtype=..., device=...\)"),
    ("num_beams", "'num_beams', which is an option of transformers: leave it out, or call paceline.hf.generate"),
    ("zzz", "'zzz': leave it out; known: n, temperature, .*verifier"),
]
WRONG = [
    (dict(temperature="0.8"), "temperature='0.8': give a number"),
    (dict(max_tokens=2.5), "max_tokens=2.5: give an integer"),
    (dict(top_k=True), "top_k=True: give an integer"),
    (dict(stop=5), "stop=5: give a string or several"),
    (dict(prompts=[1, "a"]), "prompt 0: 1 is not a prompt: give a text, a list of token ids, or a list of chat"),
    (dict(prompts=["a", None]), "prompt 1: None is not a prompt"),
    (dict(prompts=[]), "no prompts: give at least one"),
    (dict(prompts=7), "7 is not a prompt"),
    (dict(params={"temperature": 0}), "params={'temperature': 0}: give SamplingParams"),
    (dict(params=[SamplingParams()] * 2), "2 params for 1 prompts"),
    (dict(params=SamplingParams(seed=3), seed=4), "seed=4, and params with seed=3: give one of them"),
    (dict(params=SamplingParams(stop="a"), stop="b"), r"stop='b', and params with stop=\['a'\]: give one of them"),
    (dict(params=[SamplingParams()], seed=4), "seed=4 beside 1 params: give each of them its seed"),
    (dict(batch_size=True), "batch_size=True: give an integer"),
    (dict(batch_size="4"), "batch_size='4': give an integer"),
    (dict(batch_size=0), "batch_size=0: give at least 1"),
    (dict(num_draft_tokens=2.5), 'num_draft_tokens=2.5: give a number, "auto" or a Plan'),
    (dict(verifier="typical"), "unknown verifier 'typical'"),
    (dict(target=3), "target=3: give a directory, a Hub id, a loaded transformers model or what paceline.load"),
    (dict(tokenizer="x"), "tokenizer='x': give a tokenizer of transformers"),
]


@pytest.mark.parametrize(("name", "message"), UNKNOWN)
def test_unknown_keyword_is_refused_with_the_name_that_is_meant(name, message, monkeypatch):
    monkeypatch.setattr("paceline.api.targets.load", None)  # any loading would call it
    with pytest.raises(TypeError, match=message):
        generate("a directory", "x", **{name: 3})


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_argument_is_named_before_a_model_is_loaded(options, message, monkeypatch):
    monkeypatch.setattr("paceline.api.targets.load", None)
    with pytest.raises(ValueError, match=message):
        generate(**{"target": "a directory", "prompts": "x", **options})


def test_text_for_a_model_without_tokenizer_asks_for_one():
    with pytest.raises(
        ValueError, match="LlamaForCausalLM was not loaded from a directory with a tokenizer: give it as"
    ):
        generate(tiny.llama(), "x")


ENGINE = [
    (dict(batch_size=2.0), "batch_size=2.0: give an integer"),
    (dict(max_length="9"), "max_length='9': give an integer, or None"),
    (dict(guidance=1), "guidance=1: give True or False"),
]


@pytest.mark.parametrize(("options", "message"), ENGINE)
def test_wrong_engine_option_is_named(options, message, monkeypatch):
    monkeypatch.setattr("paceline.api.targets.load", None)
    with pytest.raises(ValueError, match=message):
        Engine("a directory", **options)


def test_names_of_transformers_agree_with_the_table_of_options():
    for option in OPTIONS:
        if option.field not in (None, option.name):
            assert option.name in ELSEWHERE[option.field], option.field
    assert not ELSEWHERE.keys() & SamplingOptions.__annotations__.keys()


@pytest.mark.parametrize("call", [Engine.submit, Engine.generate, Session.send, Session.stream_chat])
def test_unknown_keyword_names_the_call(call):
    with pytest.raises(TypeError, match=rf"{call.__name__}\(\) has no keyword 'max_new_tokens': give max_tokens"):
        sampling_options.with_options(call, None, {"max_new_tokens": 3})
