"""Answers are those of the engine without a drafter, whatever is set, and each turn reads only what is new."""

from dataclasses import replace
from itertools import takewhile

import pytest

from paceline.api import Source, generate, load
from paceline.cli.chat.forms import Form, encode
from paceline.cli.show import origin_style
from tests.api import checkpoints
from tests.api.checkpoints import pair
from tests.api.test_session import fed
from tests.cli.chat.talking import ASKED, GREEDY, SAMPLED, answerer, dialogue, printed, results_of


@pytest.fixture(scope="module")
def target():
    return load(pair().target)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    return load(checkpoints.chatty(tmp_path_factory.mktemp("chat") / "target"))


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_answers_are_the_tokens_of_plain_decoding(chatty, form, params, monkeypatch):
    found = results_of(monkeypatch)
    made = dialogue(answerer(chatty, form=form), ASKED, "for item in items:", "/drafter ngram", "return", params=params)
    assert made.run() == 0 and len(found) == 3
    for at, result in enumerate(found):
        tokens = encode(form, chatty, made.conversation.messages[: 2 * at + 1])
        assert list(result.prompt_tokens) == tokens
        (plain,) = generate(chatty, tokens, replace(params, seed=result.seed), stop=["\nUser:"])
        assert result.token_ids == plain.token_ids
    first, second, _ = (result.stats for result in found)
    assert sum(first.accepted) + sum(second.accepted) > 10
    assert {origin for result in found[:2] for origin in result.origin} == {"model", None}


def test_without_the_drafter_nothing_is_drafted(target, monkeypatch):
    found = results_of(monkeypatch)
    made = dialogue(answerer(target), ASKED, "/drafter off", "/retry", "/drafter on", "/retry")
    assert made.run() == 0
    drafted = [sum(result.stats.drafted) for result in found]
    assert drafted[0] > 0 and drafted[1] == 0 and drafted[2] > 0
    assert found[0].token_ids == found[1].token_ids == found[2].token_ids
    assert set(found[1].source) == {Source.PLAIN} and set(found[1].origin) == {None}
    assert "drafter model (off)\ndrafter model, depth 4\n" in printed(made)[0]


@pytest.mark.parametrize(("params", "differ"), [(GREEDY, False), (SAMPLED, True)])
def test_another_try_is_another_sample(target, params, differ, monkeypatch):
    found = results_of(monkeypatch)
    made = dialogue(answerer(target), ASKED, "/retry", params=params)
    assert made.run() == 0
    assert (found[0].token_ids != found[1].token_ids) is differ
    assert [message["content"] for message in made.conversation.messages] == [ASKED, found[1].text]


def test_depth_is_how_much_is_drafted(target, monkeypatch):
    found = results_of(monkeypatch)
    made = dialogue(answerer(target), "/depth 2", ASKED, "/depth 4", "/retry", "/depth 0", "/depth x", "/depth 65")
    assert made.run() == 1
    assert [len(result.stats.drafted) for result in found] == [2, 4]
    err = printed(made)[1]
    assert "/depth 0: give 1 to 64, or auto; /drafter off drafts nothing" in err and "/depth 65: give 1 to 64" in err
    assert "/depth x: give the tokens drafted in a step, such as 4, or auto" in err


def test_a_turn_reads_only_what_is_new(target, monkeypatch):
    found = results_of(monkeypatch)
    (item,) = target.tokenizer.encode(" item")  # a text of it has these tokens alone
    params = replace(GREEDY, allowed_token_ids=[item])
    made = dialogue(answerer(replace(target, enforce_eager=True), draft=False), params=params)
    made.take(ASKED * 6)
    counts = fed(monkeypatch, made.answerer.target)
    made.take("return second")
    before, prompt = [*found[0].prompt_tokens, *found[0].token_ids], found[1].prompt_tokens
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, prompt, strict=False)))
    assert shared == len(before)
    assert sum(counts) <= len(prompt) - shared + GREEDY.max_tokens


def test_the_room_that_is_left_ends_an_answer(target, monkeypatch):
    found = results_of(monkeypatch)
    made = dialogue(answerer(target, max_length=48), ASKED, "x", ASKED * 3, params=replace(GREEDY, max_tokens=40))
    assert made.run() == 1
    assert len(found[0].token_ids) + len(found[0].prompt_tokens) <= 48
    assert "there is room for 48 with the answer: take back messages by /undo" in printed(made)[1]
    assert made.conversation.messages[0]["content"] == ASKED  # what failed is not kept


def test_a_failed_answer_ends_nothing(target, monkeypatch):
    found = results_of(monkeypatch)
    made = dialogue(answerer(target))
    made.take(ASKED)
    engine, calls = made.answerer.engine, []

    def breaks():
        calls.append(None)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "advance", breaks)
    with pytest.raises(ValueError, match="the answer failed: out of memory"):
        made.take("again")
    assert calls and len(made.conversation.messages) == 2 and made.default == "again"
    made.take("/retry")
    assert found[1].token_ids == found[0].token_ids


def test_drafted_tokens_have_the_colour_of_their_drafter(target):
    origins = answerer(target, drafter="ngram").origins
    assert origins == ("ngram", "model")
    assert [origin_style(origin, origins) for origin in (*origins, None)] == ["green", "magenta", ""]
    made = dialogue(answerer(target), ASKED, terminal=True)
    assert made.run() == 0 and "\x1b[32m" in printed(made)[0] and "\x1b[35m" not in printed(made)[0]


def test_rejected_tokens_are_shown_if_wanted(target):
    made = dialogue(answerer(target, rejected=True, num_draft_tokens=4), ASKED, terminal=True)
    assert made.run() == 0 and "\x1b[2;9;31m" in printed(made)[0]
