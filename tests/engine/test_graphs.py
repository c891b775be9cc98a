"""Replayed steps give the results of eager ones, whatever comes between; and the steps that are not replayed."""

import copy
import logging
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from paceline.core.guidance import Guidance
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.core.tree import NoDraft
from paceline.drafters.base import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.engine import graphs as module
from paceline.engine import watch
from paceline.engine.graphs import WARM_UP, CudaGraphs
from paceline.engine.outputs import REASONS
from paceline.engine.readers import SyncReader
from paceline.engine.runner import Runner, runner_for
from paceline.engine.scheduler import Scheduler
from paceline.engine.timing import HostTimer
from paceline.engine.watch import Watch
from tests import tiny
from tests.engine.recorded import RecordedGraphs
from tests.engine.wrapped import Wrapped
from tests.harness import Alternating, decoder_for, expected, family_cases, request, tiny_drafter

pytestmark = pytest.mark.one_in(15)

LONG = [7, 3, 5, 60, 2, 2, 9, 41, 8, 8, 13, 30, 1, 0, 5, 5, 17, 22, 6, 4]


class Side:
    """A scheduler over a decoder of three rows, whose steps are called, or replayed where they can be."""

    def __init__(
        self, drafter, verifier="coupled", *, graphs=None, watch=False, k=3, plan=None, rows=3, guidance=False
    ):
        plan = plan or Fixed(k)
        self.decoder = decoder_for(
            drafter, verifier, plan=Watch(plan=plan) if watch else plan, rows=rows, guidance=guidance
        )
        self.graphs = graphs
        self.runner = Runner(self.decoder, graphs=graphs)
        self.scheduler = Scheduler(self.runner)

    def serve(self, requests, *, cancel=None):
        """All step outputs and statistics; request number ``cancel`` is taken back after the fifth step."""
        tickets = [self.scheduler.submit(one) for one in requests]
        outputs, steps = [], 0
        while not self.scheduler.idle:
            outputs += self.scheduler.advance()
            steps += 1
            if cancel is not None and steps == 5:
                self.scheduler.cancel(tickets[cancel])
            assert steps < 600
        closings = [self.scheduler.stats(ticket) for ticket in tickets]
        return outputs, [(one.summary, one.no_draft) for one in closings]


def texts(outputs):
    found = {}
    for output in outputs:
        found.setdefault(output.ticket, []).extend(output.token_ids)
    return [found[ticket] for ticket in sorted(found)]


def ragged(count=5, **sampling):
    """Requests that share rows one after the other: prompts, limits, caps and stop tokens differ."""
    return [
        request(
            (LONG * 2)[index : index + 1 + 5 * index % 17],
            max_tokens=9 + 7 * index % 13,
            stop_tokens=[index] if index % 3 == 2 else (),
            num_draft_tokens=[None, 2, None, 0][index % 4],
            **{**sampling, **({"seed": index} if sampling else {})},
        )
        for index in range(count)
    ]


SAMPLED = {"temperature": 0.8, "top_p": 0.9}


@pytest.mark.each_value
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("drafter", "verifier"), family_cases())
def test_replayed_steps_give_what_called_ones_give(drafter, verifier, sampling):
    """Tokens, what each step said of them, and statistics; with rows that end, are cancelled and serve others."""
    target = tiny.target()[1]
    plain = Side(tiny_drafter(drafter, target), verifier).serve(ragged(**sampling), cancel=1)
    made = Side(tiny_drafter(drafter, target), verifier, graphs=RecordedGraphs())
    assert made.serve(ragged(**sampling), cancel=1) == plain
    assert made.runner.num_replayed > 2 * made.runner.num_called > 0
    assert made.graphs.num_replayed == 3 * made.runner.num_replayed


TREES = {
    "branching": lambda: ModelDrafter(lm=tiny.noisy(tiny.target()[1], 0.12), shape=Topology.branching((2, 2, 1))),
    "confident": lambda: ModelDrafter(
        lm=tiny.noisy(tiny.target()[1], 0.12), shape=Confident(depth=3, width=2, num_drafted=5)
    ),
}


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("verifier", ["coupled", "recursive", "traversal"])
@pytest.mark.parametrize("tree", TREES)
def test_trees_too(tree, verifier, sampling):
    plain = Side(TREES[tree](), verifier).serve(ragged(3, **sampling))
    made = Side(TREES[tree](), verifier, graphs=RecordedGraphs())
    assert made.serve(ragged(3, **sampling)) == plain
    assert made.runner.num_replayed > made.runner.num_called


@pytest.mark.parametrize("drafter", ["ngram", "model"])
def test_plain_steps_of_the_watch_are_replayed_and_a_draft_catches_up_after_them(drafter, monkeypatch):
    """The step in which it reads what it missed is of a kind of its own."""
    monkeypatch.setattr(watch, "PERIOD", 9)
    target = tiny.target()[1]
    requests = [request(LONG[: 3 + index], max_tokens=60) for index in range(4)]
    plain = Side(tiny_drafter(drafter, target), watch=True).serve(requests)
    made = Side(tiny_drafter(drafter, target), watch=True, graphs=RecordedGraphs())
    assert made.serve(requests) == plain
    assert sum(no_draft.get(REASONS[NoDraft.MEASURED], 0) for _, no_draft in plain[1]) >= 8
    assert made.runner.recorder.num_recorded == {"ngram": 2, "model": 3}[drafter]
    assert made.runner.num_called == WARM_UP * made.runner.recorder.num_recorded


def test_every_length_of_draft_is_recorded_for_itself_and_the_plan_is_asked_once_a_step():
    plan, same = Alternating(4, 2, 1), Alternating(4, 2, 1)
    made = Side(NgramDrafter(), graphs=RecordedGraphs(), plan=plan)
    assert made.serve(ragged()) == Side(NgramDrafter(), plan=same).serve(ragged())
    assert made.runner.recorder.num_recorded == 3
    assert plan.asked == same.asked == made.runner.num_called + made.runner.num_replayed


CHANGES = {
    "top-k": dict(top_k=3),
    "top-p": dict(top_p=0.4),
    "min-p": dict(min_p=0.3),
    "temperature": dict(temperature=0.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_any_row_uses_at_all_has_recordings_of_its_own(change):
    """All rows sample alike, then one or all otherwise, then alike again."""
    alike = [request([3, 1, seed], max_tokens=9, temperature=1.3, seed=seed) for seed in range(3)]
    options = {"temperature": 1.3, **CHANGES[change]}
    otherwise = [request([3, 1, seed], max_tokens=9, seed=seed, **options) for seed in range(3)]
    made = Side(NoDrafter(), graphs=RecordedGraphs())
    for requests in (alike, otherwise, [*alike[:2], otherwise[2]], alike):
        assert texts(made.serve(requests)[0]) == [expected(one) for one in requests]
    assert made.runner.recorder.num_recorded >= 2


@pytest.mark.parametrize("drafter", ["none", "model"])
def test_guided_rows_have_recordings_of_their_own(drafter):
    """With none, the target reads the prompts alone; with any, the negative prompts too."""
    free = request([3, 1, 4], max_tokens=20)
    guided = Request(tokens=[3, 1, 4], max_tokens=20, guidance=Guidance(scale=2.5, prompt=[9, 9, 5]))
    found = []
    for graphs in (None, RecordedGraphs()):
        made = Side(tiny_drafter(drafter, tiny.target()[1]), graphs=graphs, rows=1, guidance=True)
        found.append([texts(made.serve([one])[0]) for one in (free, guided, free, guided)])
    assert found[0] == found[1] and found[0][0] != found[0][1]
    assert made.runner.num_replayed > made.runner.num_called


def test_stop_tokens_that_come_too_early_for_any_row_have_recordings_of_their_own():
    first = [request([3, 1], max_tokens=20), request([9], max_tokens=12)]
    early = [Request(tokens=[5], max_tokens=24, min_tokens=20, stop_tokens=expected(request([5]))[5:9])]
    plain, made = Side(NoDrafter()), Side(NoDrafter(), graphs=RecordedGraphs())
    for requests in (first, early, first):
        assert made.serve(requests) == plain.serve(requests)
    assert made.runner.recorder.num_recorded == 2


@pytest.mark.parametrize("asks", [{"logprobs": 2}, {"drafts": True}])
def test_steps_that_report_more_are_called_and_leave_nothing_behind(asks):
    asking = [Request(tokens=[5, 9], max_tokens=6, **asks)]
    plain, made = Side(NoDrafter()), Side(NoDrafter(), graphs=RecordedGraphs())
    for requests in (ragged(2), asking, ragged(2)):
        outputs, closings = made.serve(requests)
        assert (outputs, closings) == plain.serve(requests)
        assert any(output.logprobs for output in outputs) == (requests is asking and "logprobs" in asks)
    assert made.decoder.batch.step_logprobs is made.decoder.batch.step_drafts is None
    assert made.runner.num_called == WARM_UP + 6


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_where_recording_fails_steps_are_called(drafter, share, caplog):
    """Wherever in a step; the drafter has not failed, and one warning says what has."""
    target = tiny.target()[1]
    plain = Side(tiny_drafter(drafter, target)).serve(ragged())
    whole = Side(tiny_drafter(drafter, target), graphs=RecordedGraphs())
    assert whole.serve(ragged()) == plain
    length = whole.graphs.num_operations // whole.runner.recorder.num_recorded
    made = Side(tiny_drafter(drafter, target), graphs=RecordedGraphs(fails_at=1 + int(share * length)))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        assert made.serve(ragged()) == plain
    assert [record.message for record in caplog.records] == [
        "steps are called one operation at a time, which is slower: recording one failed: "
        "RuntimeError: the device has had enough"
    ]
    assert made.runner.recorder.num_recorded == made.runner.num_replayed == 0
    assert made.runner.drafter_error is None


def test_a_draft_whose_recording_fails_knows_how_far_it_is_behind():
    """Its host state is that of the steps that were done, not of the one that was only recorded."""
    itself, requests = tiny.target()[1], [request(LONG[: 3 + index], max_tokens=40) for index in range(3)]
    plain = Side(ModelDrafter(lm=itself), plan=Alternating(3, 0)).serve(requests)
    # The first kind to come twice is a plain step, after which the draft has one more token to read.
    made = Side(ModelDrafter(lm=itself), plan=Alternating(3, 0), graphs=RecordedGraphs(fails_at=9))
    assert made.serve(requests) == plain
    assert made.runner.recorder.num_recorded == 0 and len(made.graphs.begun) == 1


def test_what_was_recorded_before_a_failure_goes_on_being_replayed():
    made = Side(NoDrafter(), graphs=RecordedGraphs())
    made.serve(ragged(1))
    made.graphs.fails_at = made.graphs.num_operations + 9
    made.serve([request([5], temperature=1.0)])
    replayed = made.runner.num_replayed
    assert made.runner.recorder.num_recorded == 1
    made.serve(ragged(3))
    assert made.runner.num_replayed > replayed


def test_an_interruption_while_recording_leaves_the_step_as_it_was_done():
    """The eager step before it was executed and not read: its requests end, as after any interrupted step."""
    made = Side(tiny_drafter("model", tiny.target()[1]), graphs=RecordedGraphs())
    calls = []

    class Interrupted(Wrapped):
        def __call__(self, *given, **options):
            if made.graphs.recorder is not None and not calls:
                calls.append(given)
                raise KeyboardInterrupt
            return self.lm(*given, **options)

    made.decoder.target.lm = Interrupted(made.decoder.target.lm)
    tickets = [made.scheduler.submit(one) for one in ragged(2)]
    with pytest.raises(KeyboardInterrupt):
        for _ in range(9):
            made.scheduler.advance()
    assert made.decoder.drafter.lags == [2] * made.decoder.rows
    outputs, _ = made.serve(ragged(3))
    assert {output.ticket for output in outputs if output.error is not None} == set(tickets)
    assert made.runner.num_replayed > 0
    assert texts([output for output in outputs if output.ticket > 2]) == texts(Side(NoDrafter()).serve(ragged(3))[0])


class Reading(Drafter):
    """Keeps what it does on the host; ``state`` is what it says of that."""

    draws = NgramDrafter.draws

    def __init__(self, state):
        self.state, self.inner = state, NgramDrafter()

    @property
    def host_state(self):
        return self.state

    def start(self, context):
        self.asked = 0

    def prefill(self, batch, admission, hidden):
        pass

    def propose(self, batch, plan):
        self.asked += 1
        if self.state == "reads":
            assert batch.length[0] + batch.length.sum().item() > 0
        return self.inner.propose(batch, plan)

    def observe(self, batch, tree, outcome, hidden):
        pass


def test_a_drafter_that_says_nothing_of_its_host_state_is_asked_at_every_step():
    assert Drafter.host_state.fget(NgramDrafter()) is None, "unless a drafter says more"
    made = Side(Reading(None), graphs=RecordedGraphs())
    made.serve(ragged())
    assert made.runner.num_replayed == 0 and made.graphs.num_aside == 0
    assert made.decoder.drafter.asked == made.runner.num_called


def test_a_drafter_that_reads_on_the_host_after_all_is_called(caplog):
    made, plain = Side(Reading("reads"), graphs=RecordedGraphs()), Side(NgramDrafter())
    assert texts(made.serve(ragged())[0]) == texts(plain.serve(ragged())[0])
    assert made.runner.num_replayed == 0 and made.runner.drafter_error is None
    assert "not permitted when stream is capturing" in caplog.text


def test_a_drafter_that_fails_is_no_longer_asked_and_steps_without_it_are_replayed(monkeypatch):
    made = Side(tiny_drafter("model", tiny.target()[1]), graphs=RecordedGraphs())
    made.serve(ragged(2))
    recorded = made.runner.recorder.num_recorded
    monkeypatch.setattr(made.decoder.drafter, "prefill", lambda *given: 1 / 0)
    outputs, _ = made.serve(ragged(3))
    assert made.runner.drafter_error is not None and recorded >= 1
    assert made.runner.recorder.num_recorded == 1, "those of the drafter are forgotten"
    assert texts(outputs) == texts(Side(NoDrafter()).serve(ragged(3))[0])


def test_a_drafter_that_fails_in_the_step_before_its_recording_leaves_no_recording():
    drafter = tiny_drafter("ngram", None)
    made = Side(drafter, graphs=RecordedGraphs())
    for one in ragged(2):
        made.scheduler.submit(one)
    for _ in range(WARM_UP - 1):
        made.scheduler.advance()
    drafter.propose = lambda *given: 1 / 0
    made.scheduler.advance()
    assert made.runner.recorder.num_recorded == 0 and made.graphs.num_operations == 0


def test_recordings_and_what_is_remembered_of_kinds_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_RECORDED", 2)
    monkeypatch.setattr(module, "MAX_COUNTED", 5)
    made = Side(NgramDrafter(), graphs=RecordedGraphs(), plan=Alternating(*range(8), most=8))
    made.serve(ragged(2))
    assert made.runner.num_replayed == 0 and len(made.runner.recorder._counted) == 5
    plan = Alternating(2, 3, 4, 1)
    made = Side(NgramDrafter(), graphs=RecordedGraphs(), plan=plan)
    assert texts(made.serve(ragged())[0]) == texts(Side(NgramDrafter()).serve(ragged())[0])
    assert made.runner.recorder.num_recorded == 2 and made.runner.num_replayed > 0


def test_phases_are_marked_between_the_graphs_and_not_while_recording():
    marks = []

    class Noting(HostTimer):
        def mark(self):
            marks.append(made.graphs.num_replayed)

    made = Side(NoDrafter(), graphs=RecordedGraphs())
    made.runner._reader.start = Noting
    made.decoder.admit([request([5], max_tokens=9)], [0])
    for _ in range(WARM_UP):
        made.runner.launch()
    assert marks == [0, 0, 0] * WARM_UP
    marks.clear()
    made.runner.launch()
    assert marks == [1, 2, 3]


def test_tokens_are_chosen_by_noise_of_the_step_they_are_replayed_in():
    """A recording holds no seed, no position and no option of a row."""
    made = Side(NoDrafter(), graphs=RecordedGraphs(), rows=1)
    wanted = [request(LONG[:3], seed=seed, temperature=0.5 + seed / 4, max_tokens=20) for seed in range(4)]
    outputs, _ = made.serve(wanted)
    assert texts(outputs) == [expected(one) for one in wanted] and len(Counter(map(tuple, texts(outputs)))) == 4
    assert made.runner.num_called == WARM_UP


def test_a_cpu_does_its_steps_itself():
    runner = runner_for(decoder_for(NoDrafter(), "coupled"))
    assert runner.recorder is None and isinstance(runner._reader, SyncReader)


class FakeCuda:
    """What CudaGraphs asks of torch.cuda, noted; ``refuses`` is the number of the piece that cannot be ended."""

    def __init__(self, monkeypatch, *, refuses=None):
        self.log, self.pieces, self.refuses = [], 0, refuses
        fakes = {"Stream": self.stream, "current_stream": self.stream, "CUDAGraph": lambda: self, "stream": self.within}
        fakes |= {"graph_pool_handle": lambda: "pool"}
        fakes |= {name: lambda *_, name=name: self.log.append(name) for name in ("synchronize", "empty_cache")}
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def stream(self, _device):
        return SimpleNamespace(wait_stream=lambda _other: self.log.append("wait"))

    @contextmanager
    def within(self, _stream):
        self.log.append("aside")
        try:
            yield
        finally:
            self.log.append("back")

    def capture_begin(self, *, pool, capture_error_mode):
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        self.pieces += 1
        self.log.append(f"begin {self.pieces}")

    def capture_end(self):
        self.log.append(f"end {self.pieces}")
        if self.pieces == self.refuses:
            raise RuntimeError("capture was invalidated")


def test_pieces_of_a_gpu_share_a_pool_and_none_is_left_open(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    graphs = CudaGraphs(torch.device("cuda"))
    with graphs.aside():
        cuda.log.append("called")
    assert cuda.log == ["wait", "aside", "called", "back", "wait"]
    for at_first in (["empty_cache"], []):
        cuda.log.clear()
        cuda.pieces = 0
        with graphs.recording():
            graphs.begin()
            assert graphs.end() is cuda
            graphs.begin()
            graphs.end()
        assert cuda.log == ["synchronize", *at_first, "aside", "begin 1", "end 1", "begin 2", "end 2", "back"]


@pytest.mark.parametrize("refuses", [None, 1])
def test_a_piece_that_is_cut_off_is_ended_and_its_error_is_reported(monkeypatch, refuses):
    cuda = FakeCuda(monkeypatch, refuses=refuses)
    graphs = CudaGraphs(torch.device("cuda"))
    with pytest.raises(ZeroDivisionError), graphs.recording():
        graphs.begin()
        1 / 0  # noqa: B018
    assert cuda.log[-2:] == ["end 1", "back"]
    with pytest.raises(RuntimeError, match="invalidated"), graphs.recording():
        graphs.begin()
        cuda.refuses = cuda.pieces
        graphs.end()
    assert cuda.log.count("end 2") == 1, "and not a second time"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_replays_its_steps():
    native = copy.deepcopy(tiny.target()[1]).to("cuda")
    decoder = decoder_for(ModelDrafter(lm=native), "coupled", target=native, rows=2)
    runner = runner_for(decoder)
    wanted = [request(LONG, max_tokens=40), request([5], max_tokens=40)]
    decoder.admit(wanted, [0, 1])
    found = [[], []]
    while bool(decoder.batch.active.any()):
        for row, tokens in enumerate(runner.launch().result().tokens):
            found[row] += tokens
    assert found == [expected(one) for one in wanted]
    assert runner.num_called == WARM_UP and runner.num_replayed > 2
