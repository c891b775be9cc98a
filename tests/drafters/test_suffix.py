"""Suffix decoding: what is drafted, what is kept of outputs, and where."""

import os
import signal
import subprocess
import sys

import pytest

from paceline.core.tree import Draw
from paceline.drafters import suffix, token_store
from paceline.drafters.host import HostDrafting
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafters.token_store import TokenStore, TokenStoreError
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from paceline.kernels.cpu.compile import KernelError
from tests import tiny as models
from tests.engine.test_scheduler import drain
from tests.harness import decoder_for, expected, request, run

FLOOR = 2.2  # mean acceptance length on the conformance prompts, greedy


def tiny(target):
    return HostDrafting(SuffixDrafter(offset=3.0))


def guessable_target():
    return models.looping_target()


def drafted(sequence, k=4, stored=(), **options):
    """What is proposed after ``sequence``, with the outputs ``stored``."""
    drafter = SuffixDrafter(**options)
    decoder = decoder_for(HostDrafting(drafter), "coupled", k=k, max_length=96)
    for output in stored:
        drafter.stores[""].append(output)
    decoder.admit([request(sequence, max_tokens=20)], [0])
    decoder.begin_step(decoder.plan())
    tree = decoder.draft(decoder.plan())
    return tree.tokens[0, 1:][tree.valid[0, 1:]].tolist()


@pytest.fixture(params=["kernel", "plain"])
def index(request, monkeypatch):
    """Both implementations of the index."""
    if request.param == "plain":

        def none():
            raise KernelError("no compiler")

        monkeypatch.setattr(token_store, "KernelTokenIndex", none)
    return request.param


CHAINS = [
    ([1, 2, 3, 4, 9, 1, 2], {}, [3, 4, 9, 1]),  # twice as many as match
    ([1, 2, 3, 4, 9, 1, 2], dict(factor=1.0), [3, 4]),
    ([1, 2, 3, 4, 9, 1, 2], dict(factor=0.0, offset=1.0), [3]),
    ([1, 2, 3, 4, 9, 1, 2], dict(min_match=3), []),
    ([1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2], dict(factor=0.5), [7]),  # two of three went on so
    ([1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2], dict(factor=0.5, min_prob=0.7), []),
    ([5, 1, 2, 7, 6, 1, 2, 8, 6, 1, 2, 8, 5, 1, 2], dict(factor=0.5), [7]),  # a longer match promises as much
    ([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], dict(max_depth=5), [5, 9, 1]),  # of the last 2 or 3 tokens, not of all 4
    ([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], dict(max_depth=5, factor=1.0), [5, 9]),
    ([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], dict(max_depth=2), [5]),
    ([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], dict(max_depth=5, min_match=4), [5]),
    ([5, 6, 5, 6, 5], {}, [6, 5, 6, 5]),  # a copy that reaches the end starts over
    ([1, 2, 3], {}, []),
    ([7], {}, []),
]


@pytest.mark.parametrize(("sequence", "options", "proposal"), CHAINS)
def test_drafts_what_followed_most_often(sequence, options, proposal, index):
    assert drafted(sequence, **options) == proposal


def test_the_store_is_copied_from_where_it_promises_more(index):
    assert drafted([1, 2, 3], stored=[[9, 1, 2, 3, 4, 5, 6]]) == [4, 5, 6]
    assert drafted([1, 2, 3], stored=[[8, 2, 3, 4, 4], [9, 1, 2, 3, 5, 6]], k=2) == [5, 6], "the longer match"
    assert drafted([3, 9, 3], stored=[[3, 4], [3, 4]], factor=1.0) == [9], "its own text first"
    assert drafted([1, 2, 3], stored=[[1, 2, 3]]) == [], "nothing follows the end of an output"


def test_trees_hold_the_likeliest_continuations_of_all(index):
    sequence = [1, 2, 7, 5, 1, 2, 7, 6, 1, 2, 8, 3, 1, 2]
    drafter = SuffixDrafter(tree=True, offset=8.0, min_prob=0.3)
    decoder = decoder_for(HostDrafting(drafter), "coupled", k=6, max_length=96)
    decoder.admit([request(sequence, max_tokens=20)], [0])
    decoder.begin_step(decoder.plan())
    tree = decoder.draft(decoder.plan())
    pairs = [(int(p), int(t)) for p, t, v in zip(tree.parents[0], tree.tokens[0], tree.valid[0], strict=True) if v]
    # 7 has two thirds; of what is as likely, what was found first: 8 after the root is the latest occurrence's.
    assert pairs[:3] == [(-1, 2), (0, 7), (0, 8)] and len(pairs) > 4
    assert (tree.draw[0] == int(Draw.FIXED)).all()


def test_trees_are_verified(index):
    model, target = models.looping_target()
    prompt = [2, *expected(request([2], max_tokens=60), model)]
    drafter = HostDrafting(SuffixDrafter(tree=True))
    result = run(drafter, "coupled", [request(prompt, max_tokens=20)], target=target, k=3)
    assert result.texts == [expected(request(prompt, max_tokens=20), model)]
    assert result.steps == 5 and result.summary.acceptance_rate == 1.0


def test_a_copy_of_the_prompt_is_accepted_whole(index):
    model, target = models.looping_target()
    prompt = [2, *expected(request([2], max_tokens=60), model)]
    result = run(tiny(target), "coupled", [request(prompt, max_tokens=20)], target=target, k=3)
    assert result.steps == 5 and result.summary.acceptance_rate == 1.0


def served(drafter, wanted, rows=2):
    scheduler = Scheduler(Runner(decoder_for(HostDrafting(drafter), "coupled", rows=rows, k=4)))
    tickets = [scheduler.submit(one) for one in wanted]
    texts, outputs = drain(scheduler)
    return [texts[ticket] for ticket in tickets], sum(one.num_accepted for one in outputs)


def test_an_output_that_comes_again_is_drafted_from_the_first(index):
    wanted = [request([7, 3, 5], max_tokens=24)] * 3
    drafter = SuffixDrafter(offset=4.0)
    texts, accepted = served(drafter, wanted, rows=1)
    assert texts == [expected(one) for one in wanted]
    assert accepted >= 2 * 17, "the second and the third are copies of the first: 24 tokens in 5 steps or so each"
    assert drafter.stores[""].index.size == 3 * 25


def test_requests_of_different_stores_share_nothing():
    first = request([7, 3, 5], max_tokens=24)
    others = [first.__class__(tokens=[7, 3, 5], max_tokens=24, draft_store=name) for name in ("a", "b", "a")]
    _, shared = served(SuffixDrafter(offset=4.0), [first] * 3, rows=1)
    drafter = SuffixDrafter(offset=4.0)
    _, own = served(drafter, others, rows=1)
    assert 0 < own < shared, "the second cannot copy from the first, the third can"
    assert drafter.stores["a"].index.size == 50 and drafter.stores["b"].index.size == 25
    assert drafter.stores[""].index.size == 0


def test_the_oldest_outputs_are_forgotten_first(index):
    drafter = SuffixDrafter(max_tokens=60, offset=4.0)
    served(drafter, [request([token], max_tokens=24) for token in (7, 9, 11, 13)], rows=1)
    newest = expected(request([13], max_tokens=24))
    oldest = expected(request([7], max_tokens=24))
    store = drafter.stores[""].index
    assert store.size == 50 and store.find(newest[:6], min_match=6, max_match=6, limit=1)
    assert not store.find(oldest[:6], min_match=6, max_match=6, limit=1)
    for options in (dict(max_tokens=0), dict(max_outputs=0)):
        none = SuffixDrafter(**options)
        served(none, [request([7], max_tokens=24)])
        assert none.stores == {}


def test_as_many_outputs_are_kept_as_may_be(index, tmp_path):
    drafter = SuffixDrafter(max_outputs=2, offset=4.0, store=str(tmp_path))
    served(drafter, [request([token], max_tokens=24) for token in (7, 9, 11, 13)], rows=1)
    outputs = [expected(request([token], max_tokens=24)) for token in (7, 9, 11, 13)]
    kept = drafter.stores[""]
    kept.close()
    again = TokenStore(path=kept.path, vocabulary=drafter._names, max_tokens=10_000, max_outputs=2)
    for store in (kept, again):
        assert store.index.size == 2 * 25
        found = [store.index.find(one[:6], min_match=6, max_match=6, limit=1) for one in outputs]
        assert [bool(one) for one in found] == [False, False, True, True]
    again.close()


def contents(path, vocabulary="v", max_tokens=1000):
    store = TokenStore(path=path, vocabulary=vocabulary, max_tokens=max_tokens)
    found = [store.index.find([*tokens], min_match=len(tokens), max_match=64, limit=1) for tokens in STORED]
    store.close()
    return [bool(one) for one in found]


STORED = ([1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14, 15])


def test_a_file_is_there_again_and_its_torn_end_is_cut_off(tmp_path, caplog):
    path = tmp_path / "new" / "shared.outputs"
    store = TokenStore(path=path, vocabulary="v", max_tokens=1000)
    for tokens in STORED:
        store.append(tokens)
    store.close()
    assert contents(path) == [True, True, True]
    whole = path.read_bytes()
    for cut in (1, 7, 24, 26):
        path.write_bytes(whole[:-cut])
        assert contents(path) == [True, True, False]
        assert "not wholly written" in caplog.text
        assert contents(path) == [True, True, False], "it was cut off"
    path.write_bytes(whole[:-30] + b"\xff" + whole[-29:])
    assert contents(path)[:2] == [True, True]


def test_a_store_survives_a_kill(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from paceline.drafters.token_store import TokenStore\n"
        f"store = TokenStore(path=Path({str(tmp_path / 'kept')!r}), vocabulary='v', max_tokens=1000)\n"
        f"[store.append(tokens) for tokens in {STORED!r}]\n"
        "print('written', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"written\n"
        with pytest.raises(TokenStoreError, match="in use by another process: give this one a store of its own"):
            TokenStore(path=tmp_path / "kept", vocabulary="v", max_tokens=1000)
        process.send_signal(signal.SIGKILL)
    assert contents(tmp_path / "kept") == [True, True, True]


def test_a_file_grows_to_twice_what_is_kept(tmp_path):
    store = TokenStore(path=tmp_path / "kept", vocabulary="v", max_tokens=20)
    for number in range(50):
        store.append([number, 1, 2, 3])
    store.close()
    assert (tmp_path / "kept").stat().st_size < 60 + 40 * (4 + 2)
    again = TokenStore(path=tmp_path / "kept", vocabulary="v", max_tokens=20)
    assert again.index.find([49, 1, 2, 3], min_match=4, max_match=4, limit=1)
    again.close()


def test_a_full_disk_loses_no_output(tmp_path, monkeypatch, caplog):
    store = TokenStore(path=tmp_path / "kept", vocabulary="v", max_tokens=1000)
    store.append(STORED[0])
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:9]))
    store.append(STORED[1])
    monkeypatch.undo()
    store.append(STORED[2])
    assert caplog.text.count("no longer written") == 1
    assert [bool(store.index.find(t, min_match=4, max_match=64, limit=1)) for t in STORED] == [True] * 3
    assert contents(tmp_path / "kept") == [True, False, False], "and the file is whole"


@pytest.mark.parametrize(
    ("content", "vocabulary", "message"),
    [
        (b"something else\n", "v", "is no store of outputs: give another name"),
        (None, "w", r'store of another vocabulary or version .*"v".*"w".*: give each model a store of its own'),
    ],
)
def test_other_files_are_refused_and_left_alone(tmp_path, content, vocabulary, message):
    path = tmp_path / "kept"
    if content is None:
        TokenStore(path=path, vocabulary="v", max_tokens=9).close()
        content = path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(TokenStoreError, match=message):
        TokenStore(path=path, vocabulary=vocabulary, max_tokens=9)
    assert path.read_bytes() == content


def test_nothing_is_kept_where_tokens_depend_on_drafts(tmp_path):
    drafter = SuffixDrafter()
    run(HostDrafting(drafter), "rejection", [request([7, 3, 5], max_tokens=9)])
    assert drafter.stores == {}
    with pytest.raises(ValueError, match=r"store=.* a seed would not give the same tokens again; leave the store out"):
        decoder_for(HostDrafting(SuffixDrafter(store=str(tmp_path))), "rejection")


@pytest.mark.parametrize("name", ["../../etc/x", "a/b", ".", "ü", "A", "a"])
def test_names_of_stores_leave_no_directory(tmp_path, name):
    made = suffix._file_name(name)
    assert (tmp_path / f"{made}.outputs").resolve().parent == tmp_path.resolve()
    assert len({suffix._file_name(one) for one in ("", "shared", "a", "A", "a%", "a%25%", name)}) >= 6


WRONG = [
    (dict(min_match=0), "min_match=0, max_match=64: need 1 <= min_match <= max_match <= 256"),
    (dict(min_match=5, max_match=4), "need 1 <= min_match"),
    (dict(max_match=257), "max_match <= 256"),
    (dict(factor=-1.0), "factor=-1.0"),
    (dict(offset=float("inf")), "offset=inf"),
    (dict(min_prob=1.5), "min_prob=1.5: give a probability"),
    (dict(max_tokens=-1), "max_tokens=-1: give 0"),
    (dict(max_outputs=-1), "max_outputs=-1: give 0"),
    (dict(max_depth=3, min_match=3), "max_depth=3: give more than min_match=3, so that a draft has room"),
    (dict(store=__file__), "is a file: give a directory"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SuffixDrafter(**options)
