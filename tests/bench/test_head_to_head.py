import json
from dataclasses import replace

import pytest

from paceline.bench.figures import figures_of
from paceline.bench.head_to_head import choose_pairs, head_to_head_figures, keep_choices, undecided
from paceline.bench.raw import RawFile
from paceline.bench.sweep import Axes, Protocols, Ways, run_sweep
from tests.bench.scripted import TOKENS, Bench

PEER = Ways(plain="peer", drafting=("assisted", "lookup"), batches=False)
OTHER = Ways(plain="other", drafting=("other-draft",), batches=True)
AXES = Axes(
    drafters=["ngram", "model"],
    num_draft_tokens=[1, 2],
    batch_sizes=[1, 4],
    temperatures=[0.0],
    max_tokens=[8],
    peers=[PEER],
)
SECONDS = {"model k=2": 0.5, "peer": 4.0, "assisted k=1": 0.75, "lookup k=2": 0.8}
CONDITIONS = {"dtype": "float32", "suite": "code"}
PROTOCOL = Protocols(repeats=3, attempts=1)


def measure(path, bench=None, axes=AXES, protocol=PROTOCOL, conditions=CONDITIONS):
    """A sweep and its pairs; all records."""
    bench, raw = bench or Bench(seconds=SECONDS), RawFile(path)

    def sweep(tasks):
        return run_sweep(
            tasks,
            workbench=bench,
            raw=raw,
            conditions=conditions,
            notes={},
            protocol=protocol,
            clock=bench.clock,
        )

    run = sweep(axes.cells())
    sweep(keep_choices(choose_pairs(figures_of(raw.records), run=run, axes=axes), raw=raw, run=run))
    return raw.records


def pairs(records):
    return [(line.cell.batch_size, line.cell.way, line.other.way) for line in head_to_head_figures(records)]


def kinds(records, kind):
    return [record for record in records if record["kind"] == kind]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "raw.jsonl"


def test_the_fastest_of_each_side_meet(path):
    records = measure(path)
    assert pairs(records) == [
        (1, "plain", "peer"),
        (1, "model k=2", "assisted k=1"),
        (4, "plain", "peer"),
        (4, "model k=2", "peer"),
    ]
    assert [line.speedup.value for line in head_to_head_figures(records)] == [2, 1.5, 2, 8]


def test_a_plain_peer_that_overtakes_its_drafting_is_met_too(path):
    records = measure(path, Bench(seconds={**SECONDS, "peer": 0.7}))
    assert pairs(records)[:3] == [(1, "plain", "peer"), (1, "model k=2", "assisted k=1"), (1, "model k=2", "peer")]


def test_both_sides_alternate_and_the_other_runs_twice(path):
    """The ratio is of the seconds of the pair itself, not of those of the cells."""
    bench = Bench(seconds=SECONDS)
    record = kinds(measure(path, bench), "head-to-head")[1]
    assert record["seconds"] == {"other": [0.75] * 3, "ours": [0.5] * 3, "control": [0.75] * 3}
    assert (record["pair"]["ours"]["drafter"], record["pair"]["other"]["drafter"]) == ("model", "assisted")


def test_the_choice_and_what_decided_it_are_recorded(path):
    first, second = kinds(measure(path), "choice")
    assert first["group"] == {"batch_size": 1, "temperature": 0, "top_p": 1, "max_tokens": 8}
    assert len(first["considered"]) == 9 and len(second["considered"]) == 5
    assert {"speedup": 4.0, "void": False} in [
        {"speedup": entry["speedup"], "void": entry["void"]} for entry in first["considered"]
    ]
    assert [comparison["ours"]["drafter"] for comparison in first["pairs"]] == ["plain", "model"]


def test_what_is_measured_is_not_measured_again(path):
    measure(path)
    before, again = path.read_bytes(), Bench(seconds=SECONDS)
    measure(path, again)
    assert path.read_bytes() == before and again.made == []


def test_an_interrupted_sweep_goes_on_with_the_pair_that_is_missing(path):
    measure(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    again = Bench(seconds=SECONDS)
    assert len(pairs(measure(path, again))) == 4 and len(again.made) == 2
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [json.loads(line) for line in lines]


def test_a_new_best_replaces_the_old_one_in_the_report(path):
    few = Axes(
        drafters=["ngram"],
        num_draft_tokens=[1],
        batch_sizes=[1],
        temperatures=[0.0],
        max_tokens=[8],
        peers=[PEER],
    )
    assert pairs(measure(path, axes=few)) == [(1, "plain", "peer"), (1, "ngram k=1", "assisted k=1")]
    records = measure(path)
    assert pairs(records)[:2] == [(1, "plain", "peer"), (1, "model k=2", "assisted k=1")]
    assert len(kinds(records, "choice")) == 3 and len(kinds(records, "head-to-head")) == 5


def test_every_peer_is_met_at_its_own_best(path):
    """The second peer drafts in batches; there its own draft is met, where it is the faster."""
    seconds = {**SECONDS, "other": 3.0, "other-draft k=2": 0.6}
    assert pairs(measure(path, Bench(seconds=seconds), axes=replace(AXES, peers=[PEER, OTHER]))) == [
        (1, "plain", "peer"),
        (1, "model k=2", "assisted k=1"),
        (1, "plain", "other"),
        (1, "model k=2", "other-draft k=2"),
        (4, "plain", "peer"),
        (4, "model k=2", "peer"),
        (4, "plain", "other"),
        (4, "model k=2", "other-draft k=2"),
    ]


def test_void_cells_are_not_chosen(path):
    """The control of the fourth cell, the draft model's with k=2, fails."""
    records = measure(path, Bench(seconds=SECONDS, controls=[1, 1, 1, 2]))
    assert [line.void for line in figures_of(records)][:4] == [False, False, False, True]
    assert pairs(records)[1] == (1, "ngram k=1", "assisted k=1")
    assert pairs(records)[3] == (4, "model k=2", "peer")


def test_sides_without_a_sound_cell_are_named(path):
    """All nine cells of batch size 1 are void."""
    records = measure(path, Bench(seconds=SECONDS, controls=[2] * 9))
    assert pairs(records) == [(1, "plain", "peer"), (4, "plain", "peer"), (4, "model k=2", "peer")]
    assert undecided(records) == ["batch 1, temperature 0, 8 tokens"]
    assert undecided(measure(path, protocol=Protocols(repeats=3, attempts=2))) == []


def test_cells_of_another_run_decide_nothing(path):
    measure(path, Bench(seconds={**SECONDS, "ngram k=1": 0.1}), conditions={**CONDITIONS, "dtype": "bfloat16"})
    found = pairs(measure(path))
    assert [own for batch, own, _ in found if batch == 1] == ["plain", "ngram k=1", "plain", "model k=2"]
    assert [line.label for line in head_to_head_figures(measure(path))] == ["bfloat16, 1 thread"] * 4 + [
        "float32, 1 thread"
    ] * 4


def test_void_pairs_are_timed_again(path):
    num_cells = len(AXES.cells())
    records = measure(path, Bench(seconds=SECONDS, controls=[1] * num_cells + [2]))
    line = head_to_head_figures(records)[0]
    assert line.void and line.control == 0.5
    again = measure(path, protocol=Protocols(repeats=3, attempts=2))
    line = head_to_head_figures(again)[0]
    assert not line.void and len(line.attempts) == 2 and len(kinds(again, "head-to-head")) == 5


def test_without_peers_nobody_meets(path):
    axes = Axes(drafters=["ngram"], num_draft_tokens=[1], batch_sizes=[1], temperatures=[0.0], max_tokens=[8])
    assert kinds(measure(path, axes=axes), "choice") == []


def test_differing_outputs_are_counted_between_the_sides(path):
    records = measure(path, Bench(seconds=SECONDS, tokens=((1, 2, 9, 4), TOKENS[1])))
    plain, drafted = head_to_head_figures(records)[:2]
    assert plain.differences == [2]  # the scripted peer's text is another
    assert drafted.differences == []


def test_files_in_the_former_words_are_read_and_continued(path):
    """A pair was called a duel, ours our own, and the number of an interleaved run was that of what ran together."""
    now = measure(path)
    former = path.read_text()
    words = {"head-to-head": "duel", "pair": "duel", "pairs": "duels", "ours": "own", "interleaved": "together"}
    for name, old in words.items():
        former = former.replace(f'"{name}"', f'"{old}"')
    assert '"duels"' in former and '"own"' in former
    path.write_text(former)
    again = Bench(seconds=SECONDS)
    assert measure(path, again) == now and again.made == [] and path.read_text() == former
