"""A request's tokens match the naive reference for its seed whatever else the engine runs.

Hypothesis chooses the requests, their prompts and order, the number of rows, and when requests are cancelled. Exact
because everything runs in float64.
"""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.api import SamplingParams
from paceline.core.tree import NoDraft
from paceline.engine import prefixes, watch
from paceline.engine.outputs import REASONS
from paceline.verifiers import VERIFIERS
from tests import harness
from tests.api.engines import engine, naive

pytestmark = pytest.mark.one_in(14)

PAIRS = harness.pairs()
LONG = [7, 3, 5, 60, 2, 2, 9, 41, 8, 8, 13, 30, 1, 0, 5, 5, 17, 22, 6, 4, 50, 11]  # long enough to be shared
BASES = ([5], [8, 8, 8, 8, 8, 8], LONG, LONG[:18], [*LONG, 33, 7], [*LONG[:17], 1])
GREEDY = (
    SamplingParams(temperature=0.0, max_tokens=14),
    SamplingParams(temperature=0.0, max_tokens=9, logprobs=2),
    SamplingParams(temperature=0.0, max_tokens=12, min_tokens=4, stop_token_ids=[8, 41, 13, 22]),
    SamplingParams(temperature=0.0, max_tokens=1),
)
SAMPLED = (
    SamplingParams(max_tokens=14, seed=1),
    SamplingParams(max_tokens=8, top_k=9, top_p=0.8, temperature=1.3, seed=2**40 + 5, logprobs=0),
    SamplingParams(max_tokens=12, min_p=0.05, seed=3, stop_token_ids=[8, 41, 13, 22], min_tokens=5),
    SamplingParams(max_tokens=9, temperature=0.6, seed=4, stop_token_ids=[5, 9, 60, 2]),
    SamplingParams(max_tokens=11, temperature=0.8, top_p=0.9, n=3, seed=5),
)


@pytest.fixture(scope="module", autouse=True)
def short_prefixes_and_frequent_measuring():
    """Prefixes of three tokens are shared, and measuring steps are frequent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_SHARED", 3)
        patch.setattr(watch, "FIRST", 3)
        patch.setattr(watch, "PERIOD", 7)
        yield


@dataclass(frozen=True)
class Call:
    """One submission: its prompts and parameters, the steps after it, and when it is cancelled, if ever."""

    prompts: list
    params: list
    wait: int
    life: int | None


@st.composite
def prompts(draw, params):
    """A base prompt, possibly extended by the output of another request with the same base."""
    base = draw(st.sampled_from(BASES))
    grown = draw(st.sampled_from((0, 0, 4, 7)))
    return [
        *base,
        *naive(base, replace(params, stop_token_ids=None, min_tokens=0, max_tokens=14), params.seed or 0)[:grown],
    ]


@st.composite
def calls(draw, options):
    params = draw(st.lists(st.sampled_from(options), min_size=1, max_size=3))
    return Call(
        prompts=[draw(prompts(option)) for option in params],
        params=params,
        wait=draw(st.integers(0, 3)),
        life=draw(st.sampled_from((None, None, 0, 1, 2, 4))),
    )


def expected(call, result):
    return naive(call.prompts[result.index], call.params[result.index], result.seed)


def assert_tokens(call, pieces, results, *, cancelled):
    for result in results:
        wanted = expected(call, result)
        own = [piece for piece in pieces if (piece.index, piece.sample) == (result.index, result.sample)]
        assert [piece.token for piece in own] == list(result.token_ids)
        assert [piece.source for piece in own] == list(result.source)
        assert len(result.token_ids) == result.stats.summary.emitted
        if result.finish_reason == "cancelled":
            assert cancelled and result.error is None
            assert list(result.token_ids) == wanted[: len(result.token_ids)]
        else:
            assert list(result.token_ids) == wanted
            assert own[-1].finish_reason == result.finish_reason


def serve(running, todo, seen):
    """Submit each call of ``todo`` on schedule, step, cancel, and read every stream to its end."""
    live, closed = [], []
    for call in todo:
        live.append((call, running.submit(call.prompts, call.params), [0]))
        for _ in range(call.wait):
            running.advance()
            for other, stream, age in live:
                age[0] += 1
                if other.life == age[0]:
                    stream.close()
        if call.life == 0:
            live[-1][1].close()  # before anything of it was admitted, if it came last
    for call, stream, _ in live:
        if call.life is not None and call.life > call.wait:
            for _ in range(call.life - call.wait):
                running.advance()
            stream.close()
        closed.append((call, list(stream), stream.results()))
    for call, pieces, results in closed:
        assert_tokens(call, pieces, results, cancelled=call.life is not None)
        for result in results:
            cancelled = (
                "cancelled in its row" if result.stats.times.prefill or result.token_ids else "cancelled in the queue"
            )
            seen[cancelled if result.finish_reason == "cancelled" else "ended"] += 1
            seen["measured"] += REASONS[NoDraft.MEASURED] in result.stats.no_draft


def note_forks(decoder, seen):
    """Count in ``seen`` where the admissions of ``decoder`` take a shared prefix from."""
    begin = decoder.begin

    def noting(requests, rows, prefixes, **options):
        active = decoder.batch.active.tolist()
        for row, prefix in zip(rows, prefixes, strict=True):
            where = None if prefix is None else "own" if prefix.row == row else active[prefix.row]
            seen[{None: "alone", "own": "own row", True: "running row", False: "idle row"}[where]] += 1
        return begin(requests, rows, prefixes, **options)

    decoder.begin = noting


def assert_matches_reference(drafter, verifier, options):
    seen = Counter()

    @settings(max_examples=7, derandomize=True, deadline=None, database=None)
    @given(
        rounds=st.lists(st.lists(calls(options), min_size=1, max_size=4), min_size=1, max_size=2),
        rows=st.integers(1, 5),
        num_draft_tokens=st.integers(1, 4),
    )
    def check_rounds(rounds, rows, num_draft_tokens):
        running = engine(drafter, verifier, batch_size=rows, num_draft_tokens=num_draft_tokens, max_length=64)
        note_forks(running.decoder, seen)
        for todo in rounds:  # a second round finds rows that others have left
            serve(running, todo, seen)
        assert running.runner.drafter_error is None, "a drafter that fails costs no token, so nothing else would tell"

    check_rounds()
    kinds = ["alone", "own row", "running row", "idle row", "cancelled in the queue", "cancelled in its row", "ended"]
    assert not [kind for kind in kinds if not seen[kind]], "examples that do not show what they are for"
    assert drafter == "none" or not VERIFIERS.find(verifier).same_tokens or seen["measured"]


@pytest.mark.each_value
@pytest.mark.parametrize(("drafter", "verifier"), harness.family_cases())
def test_greedy_tokens_match_the_reference_under_any_schedule(drafter, verifier):
    assert_matches_reference(drafter, verifier, GREEDY)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("drafter", "verifier"), harness.family_cases([pair for pair in PAIRS if pair[1] == "coupled"])
)
def test_sampled_tokens_match_the_reference_under_any_schedule(drafter, verifier):
    assert_matches_reference(drafter, verifier, (*SAMPLED, GREEDY[0], GREEDY[2]))
