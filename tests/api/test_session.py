"""A session matches one call over its whole sequence, and prefills only new tokens."""

from dataclasses import replace

import pytest

from paceline.api import SamplingParams, generate, load
from paceline.api.session import Session
from paceline.verifiers import VERIFIERS
from tests.api import checkpoints
from tests.api.checkpoints import pair
from tests.harness import family_cases, pairs, tiny_drafter

pytestmark = pytest.mark.one_in(14)

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=5)


@pytest.fixture(scope="module")
def target():
    return load(pair().target)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    return load(checkpoints.chatty(tmp_path_factory.mktemp("chat") / "target"))


def fed(monkeypatch, target):
    """A list that collects the valid nodes of each forward of the target."""
    counts, forward = [], type(target.lm).forward

    def counted(self, tree, cache, **options):
        if self is target.lm:
            counts.append(int(tree.valid.sum()))
        return forward(self, tree, cache, **options)

    monkeypatch.setattr(type(target.lm), "forward", counted)
    return counts


SAME = [pair for pair in pairs() if VERIFIERS.find(pair[1]).same_tokens]
CASES = [
    pytest.param(*case.values, params, marks=case.marks)
    for some, params in ((None, GREEDY), (SAME, SAMPLED))
    for case in family_cases(some)
]


@pytest.mark.parametrize(("name", "verifier", "params"), CASES)
def test_turn_matches_one_call_over_the_whole_sequence(target, name, verifier, params):
    drafter = tiny_drafter(name, target.lm)
    session = Session(target, drafter=drafter, verifier=verifier, num_draft_tokens=5)
    text, accepted, steps = [], 0, 0
    for said in ("def add(first, second):", "\n    return", [7, 8, 9], "for item in items:"):
        before = list(session.tokens)
        result = session.send(said, params)
        assert list(result.prompt_tokens[: len(before)]) == before == text
        (whole,) = generate(target, list(result.prompt_tokens), params)
        assert result.token_ids == whole.token_ids
        text = [*result.prompt_tokens, *result.token_ids]
        accepted, steps = accepted + sum(result.stats.accepted), steps + result.stats.steps
    assert list(session.tokens) == text
    if name == "model":
        # Tokens drawn without the target's noise are accepted less often.
        assert accepted / steps > (0.0 if verifier == "match" else 0.3)


def test_turn_prefills_only_new_tokens(target, monkeypatch):
    session = Session(replace(target, enforce_eager=True))  # the eager decoder is what is counted
    counts = fed(monkeypatch, target)
    first = session.send("def add(first, second):" * 4, GREEDY)
    assert sum(counts) == len(first.prompt_tokens) - 1 + len(first.token_ids)
    counts.clear()
    session.send([1, 2, 3], GREEDY)
    # the last token of the first turn was not in the cache; the last of the three new ones is the root
    assert sum(counts) == 1 + 2 + 12


def test_chat_turn_matches_one_call_over_the_messages(chatty):
    session = Session(chatty, drafter="ngram", num_draft_tokens=5, messages=[{"role": "system", "content": "add"}])
    for said in ("one", "two and three"):
        messages = [*session.messages, {"role": "user", "content": said}]
        result = session.chat(said, SAMPLED)
        (whole,) = generate(chatty, messages, SAMPLED)
        assert result.token_ids == whole.token_ids and result.text == whole.text
        assert session.messages == (*messages, {"role": "assistant", "content": result.text})


def test_closed_turn_keeps_its_tokens(target):
    session = Session(target, drafter=pair().draft, num_draft_tokens=5)
    stream = session.stream("def add(", GREEDY)
    given = [next(stream).token for _ in range(3)]
    stream.close()
    assert session.result.finish_reason == "cancelled"
    assert list(session.result.token_ids[:3]) == given
    assert session.tokens == (*session.result.prompt_tokens, *session.result.token_ids)
    after = session.send([5], GREEDY)
    assert after.token_ids == generate(target, list(after.prompt_tokens), GREEDY)[0].token_ids


def test_refused_turn_leaves_the_session_unchanged(target):
    session = Session(target, max_length=64)
    session.send("x", GREEDY)
    before = session.tokens
    for said, params, message in (
        ([5], SamplingParams(n=2, temperature=1.0), "n=2: a session continues one sequence"),
        ([5] * 80, GREEDY, "exceed the limit of 64 tokens"),
        ([9999], GREEDY, "leave the target's vocabulary"),
    ):
        with pytest.raises(ValueError, match=message):
            session.send(said, params)
        assert session.tokens == before
    with pytest.raises(ValueError, match="has no chat template"):
        session.chat("x", GREEDY)
    assert session.messages == ()
