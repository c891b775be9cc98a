"""Cells that take turns in one run: what is paired, what is kept, and who is left behind."""

import json
from dataclasses import replace

import pytest

from paceline.bench.figures import durations_of, figures_of, sampled_figures_of
from paceline.bench.head_to_head import choose_pairs, head_to_head_figures, keep_choices, unpaired
from paceline.bench.interleaved import MOST_OPEN, check_programs, groups_of, run_interleaved
from paceline.bench.missing_peers import failures_of
from paceline.bench.raw import RawFile
from paceline.bench.runner import Configuration, DecodingFailed, Sample
from paceline.bench.sweep import Axes, Protocols, Ways
from tests.bench.scripted import TOKENS, Bench, counts

PEER = Ways(plain="peer", drafting=("peer-draft",), batches=True, programs=True)
AXES = Axes(
    drafters=["ngram", "model"],
    num_draft_tokens=[1, 2],
    batch_sizes=[1, 4],
    temperatures=[0.0],
    max_tokens=[8],
    peers=[PEER],
)
SECONDS = {"model k=2": 0.5, "peer": 4.0, "peer-draft k=1": 0.75, "peer-draft k=2": 1.5}
CONDITIONS = {"dtype": "float32", "suite": "code"}
PROTOCOL = Protocols(repeats=3, attempts=3)


class Turns(Bench):
    """Scripted sides; plain decoding again, beside a group, is its control. Sides of ``dying`` die in the repeats."""

    def __init__(self, *, dying=(), absent=(), drift=(), texts=None, short=(), phases=None, **options):
        super().__init__(**options)
        self.dying, self.absent, self.short, self.texts = dying, absent, short, texts or {}
        self.drift, self.order, self.closed, self.phases = iter(drift), [], 0, phases

    def plain(self, name, cell):
        sample = Sample(tokens=TOKENS, summary=counts(8, 8, [0], [0]), decode_seconds=1.6, phases=self.phases)
        return self._made(name, 2.0, sample, drift=self.drift if name.endswith("again") else None)

    def candidate(self, name, cell):
        if cell.way in self.absent:
            raise DecodingFailed(f"{cell.way}: it did not start")
        self.made.append(cell)
        made = counts(5, 8, [5, 5], [3, 0])
        tokens = self.texts.get(cell.way, TOKENS)
        sample = Sample(
            tokens=tokens[:1] if cell.way in self.short else tokens,
            summary=made,
            texts=(counts(2, 4, [2, 2], [2, 0]), counts(3, 4, [3, 3], [1, 0])),
            phases=self.phases,
            decode_seconds=self._seconds.get(cell.way, 1.0) * (0.5 if cell.temperature else 0.4),
        )
        return self._made(name, self._seconds.get(cell.way, 1.0), sample, dies=cell.way in self.dying)

    def _made(self, name, seconds, sample, dies=False, drift=None):
        turns, drift = iter(range(99)), drift or iter(())

        def run():
            self.order.append(name)
            self.now += seconds * next(drift, 1.0)
            if dies and next(turns) == 2:
                raise DecodingFailed(f"{name}: it died")
            return sample

        return Configuration(name=name, parts=[run])

    def close(self):
        self.closed += 1


def measure(path, bench=None, axes=AXES, protocol=PROTOCOL, beside=None):
    bench, raw = bench or Turns(seconds=SECONDS), RawFile(path)
    run = run_interleaved(
        axes.cells(),
        workbench=bench,
        raw=raw,
        conditions=CONDITIONS,
        notes={},
        protocol=protocol,
        close=bench.close,
        clock=bench.clock,
        beside=beside,
    )
    chosen = keep_choices(choose_pairs(figures_of(raw.records), run=run, axes=axes), raw=raw, run=run)
    assert bench.closed == len(groups_of(axes.cells()))  # what is open serves all attempts
    return raw.records, unpaired(chosen, raw.records, run=run)


def cells_of(records):
    return [record for record in records if record["kind"] == "cell"]


def pairs(records):
    return [(line.cell.batch_size, line.cell.way, line.other.way) for line in head_to_head_figures(records)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "raw.jsonl"


def test_every_side_runs_once_in_every_repeat_and_the_order_turns_round(path):
    bench = Turns(seconds=SECONDS)
    measure(path, bench, replace(AXES, batch_sizes=[1]))
    num_sides = 1 + 7 + 1
    rounds = [bench.order[at : at + num_sides] for at in range(0, len(bench.order), num_sides)]
    assert len(rounds) == 1 + 3 and all(sorted(one) == sorted(rounds[0]) for one in rounds)
    assert rounds[1] == rounds[0][::-1] and rounds[0][-1] == "plain, temperature 0"
    assert bench.closed == 1


def test_cells_have_the_same_plain_seconds_and_plain_is_a_cell(path):
    records, _ = measure(path)
    cells = cells_of(records)
    assert len(cells) == 2 * 8 and {record["interleaved"] for record in cells} == {1, 2}
    plain = cells[0]
    assert plain["cell"]["drafter"] == "plain" and plain["seconds"] == {
        "plain": [2.0] * 3,
        "candidate": [2.0] * 3,
        "control": [2.0] * 3,
    }
    found = {line.cell.way: line.speedup.value for line in figures_of(records) if line.cell.batch_size == 1}
    assert found == {"plain": 1, "peer": 0.5, "peer-draft k=1": 2 / 0.75, "peer-draft k=2": 2 / 1.5} | {
        "ngram k=1": 2,
        "ngram k=2": 2,
        "model k=1": 2,
        "model k=2": 4,
    }


def test_the_best_meet_in_the_repeats_they_shared(path):
    records, lacking = measure(path)
    assert lacking == [] and not any(record["kind"] == "head-to-head" for record in records)
    assert pairs(records)[:2] == [(1, "plain", "peer"), (1, "model k=2", "peer-draft k=1")]
    assert [line.speedup.value for line in head_to_head_figures(records)][:2] == [2, 1.5]
    assert [line.control for line in head_to_head_figures(records)][:2] == [1, 1]


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (TOKENS, TOKENS, []),
        (((1, 2, 9, 4), TOKENS[1]), TOKENS, [2]),
        (((1, 2, 9, 4), TOKENS[1]), ((1, 2, 9, 4), TOKENS[1]), []),
        (((1, 2, 9, 4), TOKENS[1]), ((1, 2, 9, 5), TOKENS[1]), [3]),
        (((1, 2, 9, 4), TOKENS[1]), ((1, 8, 3, 4), (5, 6, 7, 1)), [1, 3]),
    ],
)
def test_texts_are_compared_between_the_sides(path, own, other, expected):
    records, _ = measure(path, Turns(seconds=SECONDS, texts={"model k=2": own, "peer-draft k=1": other}))
    line = head_to_head_figures(records)[1]
    assert line.differences == expected


@pytest.mark.parametrize(("drift", "repeats"), [([1.1], 3), ([1.0, 1.1], 3), ([1.1] * 3, 7), ([1.1] * 4, 9)])
def test_a_group_whose_control_fails_has_more_repeats_which_all_count(path, drift, repeats):
    axes = replace(AXES, batch_sizes=[1])
    drift = [1.0, *drift]  # the first is the warm-up
    records, _ = measure(path, Turns(seconds=SECONDS, drift=drift), axes)
    cells = cells_of(records)
    assert len(cells) == 8 and not any(record["void"] for record in cells)
    controls = [2.0 * scale for scale in [*drift[1:], *[1.0] * 9][:repeats]]
    assert all(record["seconds"]["control"] == pytest.approx(controls) for record in cells)
    assert not any(line.void for line in (*figures_of(records), *head_to_head_figures(records)))


def test_a_machine_that_never_rests_is_given_up(path):
    axes = replace(AXES, batch_sizes=[1])
    records, lacking = measure(path, Turns(seconds=SECONDS, drift=[2.0] * 99), axes)
    assert len(cells_of(records)) == 8 and lacking == []
    assert all(len(record["seconds"]["control"]) == 3 * 3 for record in cells_of(records))
    assert all(line.void for line in (*figures_of(records), *head_to_head_figures(records)))
    again = Turns(seconds=SECONDS)
    assert measure(path, again, axes)[0] and again.made == []
    more = Turns(seconds=SECONDS)
    measure(path, more, axes, protocol=replace(PROTOCOL, attempts=4))
    assert len(more.made) == 7 and not figures_of(RawFile(path).records)[0].void


def test_an_interruption_costs_the_group_that_was_running(path):
    class Interrupted(Turns):
        def candidate(self, name, cell):
            if cell.batch_size == 4:
                raise KeyboardInterrupt
            return super().candidate(name, cell)

    bench, again = Interrupted(seconds=SECONDS), Turns(seconds=SECONDS)
    with pytest.raises(KeyboardInterrupt):
        measure(path, bench)
    assert bench.closed == 2
    before = path.read_bytes()
    records, lacking = measure(path, again)
    assert {cell.batch_size for cell in again.made} == {4} and path.read_bytes().startswith(before)
    assert len(cells_of(records)) == 16 and len(pairs(records)) == 4 and lacking == []


@pytest.mark.parametrize("trouble", ["dying", "absent", "short"])
def test_a_peer_that_fails_leaves_and_the_others_go_on(path, trouble):
    axes = replace(AXES, batch_sizes=[1])
    records, lacking = measure(path, Turns(seconds=SECONDS, **{trouble: ["peer-draft k=1"]}), axes)
    assert len(cells_of(records)) == 7 and all(len(record["seconds"]["plain"]) == 3 for record in cells_of(records))
    (failure,) = failures_of(records)
    assert failure.task == "peer-draft k=1, batch 1, temperature 0, 8 tokens"
    words = {"dying": "it died", "absent": "it did not start", "short": "4 tokens where 8 were wanted"}
    assert words[trouble] in failure.message
    assert pairs(records)[1] == (1, "model k=2", "peer-draft k=2") and lacking == []


def test_what_was_timed_later_alone_meets_directly(path):
    """The peer's faster way comes back: it shares no repeat with our best."""
    axes = replace(AXES, batch_sizes=[1])
    measure(path, Turns(seconds=SECONDS, absent=["peer-draft k=1"]), axes)
    again = Turns(seconds=SECONDS)
    records, lacking = measure(path, again, axes)
    assert [cell.way for cell in again.made] == ["peer-draft k=1"] and failures_of(records) == []
    assert [str(pair) for pair in lacking] == ["model k=2 against peer-draft k=1, batch 1, temperature 0"]
    assert (1, "model k=2", "peer-draft k=1") not in pairs(records)


def test_each_temperature_has_its_own_plain_side(path):
    """Sampled steps take 0.5 s of decoding where greedy ones take 0.4 s."""
    axes = replace(AXES, batch_sizes=[1], temperatures=[0.0, 0.7], top_p=0.95, peers=[], drafters=["model"])
    bench = Turns(seconds=SECONDS)
    records, _ = measure(path, bench, axes)
    assert len(set(bench.order)) == 2 + 4 + 2 and "plain, temperature 0.7, top-p 0.95, again" in bench.order
    samplings = {(record["cell"]["temperature"], record["cell"]["top_p"]) for record in cells_of(records)}
    assert samplings == {(0.0, 1.0), (0.7, 0.95)} and {record["interleaved"] for record in cells_of(records)} == {1}
    lines = {one.line.cell.way: one.ratio.value for one in sampled_figures_of(figures_of(records))}
    assert lines == {"plain": 1, "model k=1": pytest.approx(0.8), "model k=2": pytest.approx(0.8)}


def test_cells_of_different_runs_are_not_compared_with_greedy_ones(path):
    axes = replace(AXES, batch_sizes=[1], peers=[], drafters=["model"])
    measure(path, axes=axes)
    records, _ = measure(path, axes=replace(axes, temperatures=[0.0, 0.7]))
    assert len(cells_of(records)) == 3 + 3 and sampled_figures_of(figures_of(records)) == []


def test_timing_and_starting_are_reported_apart(path):
    class Slow(Turns):
        def candidate(self, name, cell):
            self.now += 90.0 if cell.drafter.startswith("peer") else 0.0
            return super().candidate(name, cell)

    records, _ = measure(path, Slow(seconds=SECONDS), replace(AXES, batch_sizes=[1]))
    durations = durations_of(records)
    assert durations.starting == 3 * 90
    assert durations.timing == 4 * (2 * 2.0 + 3 * 1.0 + 0.5 + 4.0 + 0.75 + 1.5)
    assert {line.cell.way: line.start_seconds for line in figures_of(records)}["peer"] == 90


def test_the_machine_is_measured_in_every_repeat(path):
    taken = iter({"read": float(at), "flops": 1.0} for at in range(99))
    records, _ = measure(path, axes=replace(AXES, batch_sizes=[1]), beside=lambda: next(taken))
    assert [rates["read"] for rates in cells_of(records)[0]["rates"]] == [0, 1, 2]


def test_too_many_programs_at_once_are_refused():
    many = replace(AXES, num_draft_tokens=list(range(1, MOST_OPEN + 1)))
    with pytest.raises(ValueError, match="--together at batch 1: 9 programs of peers would be open"):
        check_programs(many)
    check_programs(replace(many, peer_counts={"peer-draft": [3, 5]}))
    check_programs(replace(many, peers=[replace(PEER, programs=False)]))


def test_records_are_lines_of_json(path):
    records, _ = measure(path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == json.loads(json.dumps(records))
