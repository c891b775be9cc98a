"""Rows that advance independently, in lock-step and realigned: the same outputs, the least accepted, one end."""

import json
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import torch

from benchmarks.batched import acceptance, locked_model
from benchmarks.batched_modes import AGAIN, LOCK_STEP, PER_ROW, REALIGNED, AlignedLM, Alignment, Cell, LockStep, prepare
from paceline.api.loading import load
from paceline.core.cache import SlotCache
from paceline.core.plan import Fixed
from paceline.core.stats import Summary
from paceline.core.step import Finish
from paceline.decode import Decoder
from paceline.drafters.model import ModelDrafter
from paceline.verifiers.coupled import Coupled
from tests import tiny
from tests.api.checkpoints import other_vocabulary, pair
from tests.benchmarks.command import measured, records_of, run, small
from tests.harness import expected, request

K = 3
REQUESTS = [
    request([3], max_tokens=20),
    request([5, 9, 2, 40, 7, 7, 1], max_tokens=31),
    request([11, 4, 8, 15, 16, 23, 42, 9, 9, 30, 2], max_tokens=12),
    request([60, 1, 1], max_tokens=24),
]


class Recording:
    """A verifier beside ``coupled``: what was active, what that would have accepted, and what was."""

    def __init__(self, rule):
        self.rule, self.steps = rule, []
        self.wants, self.branches, self.same_tokens = rule.wants, rule.branches, rule.same_tokens

    def __call__(self, tree, logits, batch):
        outcome = self.rule(tree, logits, batch)
        accepted = [(own.num_committed - 1).tolist() for own in (Coupled()(tree, logits, batch), outcome)]
        self.steps.append((batch.active.tolist(), *accepted))
        return outcome


def decoder_of(verifier=None, *, alignment=None, target=None, requests=REQUESTS):
    """With a draft that is the target with noise, its caches full of what nobody may read."""
    target = target or tiny.target()[1]
    around = (lambda lm: lm) if alignment is None else partial(AlignedLM, alignment=alignment)
    decoder = Decoder(
        target=around(target),
        drafter=ModelDrafter(lm=around(tiny.noisy(target, 0.08))),
        verifier=verifier or Coupled(),
        plan=Fixed(K),
        rows=len(requests),
        max_length=max(len(one.tokens) + one.max_tokens for one in requests),
    )
    for view in (decoder.cache, decoder.drafter.cache):
        view.storage.keys.fill_(9.0)
        view.storage.values.fill_(-9.0)
    if alignment is not None:
        alignment.begin([len(one.tokens) for one in requests])
    decoder.admit(requests, range(len(requests)))
    return decoder


def steps_of(decoder, alignment=None):
    """Reports until all rows have ended; rows are moved after each step where there is an alignment."""
    while bool(decoder.batch.active.any()):
        decoder.step()
        yield decoder.results()
        if alignment is not None:
            alignment.align(decoder.batch.length)


def texts_of(decoder, requests=REQUESTS):
    pieces = zip(decoder.batch.tokens.tolist(), decoder.batch.length.tolist(), requests, strict=True)
    return [text[len(one.tokens) : length] for text, length, one in pieces]


def test_all_ways_write_what_plain_decoding_writes():
    wanted = [expected(one) for one in REQUESTS]
    alignment = Alignment(len(REQUESTS), torch.device("cpu"))
    alone, locked, moved = decoder_of(), decoder_of(LockStep()), decoder_of(alignment=alignment)
    accepted = [report.num_accepted for report in steps_of(alone)]
    locked_steps = len(list(steps_of(locked)))
    assert [report.num_accepted for report in steps_of(moved, alignment)] == accepted, "who is moved drafts as well"
    assert texts_of(alone) == texts_of(locked) == texts_of(moved) == wanted
    assert locked_steps > len(accepted), "the rows were never apart"


def test_learned_positions_are_those_of_the_text_and_not_of_the_slots():
    model = tiny.gpt2()
    alignment = Alignment(len(REQUESTS), torch.device("cpu"))
    moved = decoder_of(alignment=alignment, target=tiny.native(model))
    list(steps_of(moved, alignment))
    assert texts_of(moved) == [expected(one, model) for one in REQUESTS]


def test_moved_rows_end_at_one_slot_and_hold_what_rows_at_rest_hold():
    alignment = Alignment(len(REQUESTS), torch.device("cpu"))
    alone, moved = decoder_of(), decoder_of(alignment=alignment)
    offsets = set()
    for _ in zip(steps_of(alone), steps_of(moved, alignment), strict=False):
        alignment.align(moved.batch.length)
        ends = (alignment.offset + moved.batch.length).tolist()
        assert set(ends) == {int(moved.batch.length.max())}, "no wider than the longest text"
        for mine, other in ((moved.cache, alone.cache), (moved.drafter.cache, alone.drafter.cache)):
            assert mine.length.tolist() == other.length.tolist()
            for row, (first, length) in enumerate(zip(alignment.offset.tolist(), mine.length.tolist(), strict=True)):
                for store in ("keys", "values"):
                    here, there = (getattr(view.storage, store)[:, row] for view in (mine, other))
                    torch.testing.assert_close(here[:, first : first + length], there[:, :length])
        offsets.add(tuple(alignment.offset.tolist()))
    assert len(offsets) > 5


@pytest.mark.parametrize("head_dim", [1, 2, 3, 8])
def test_heads_of_any_size_are_moved_whole(head_dim):
    alignment = Alignment(2, torch.device("cpu"))
    cache = alignment.keep(
        SlotCache(
            num_layers=2, rows=2, capacity=7, num_kv_heads=3, head_dim=head_dim, dtype=torch.bfloat16, device="cpu"
        )
    )
    for seed, store in enumerate((cache.keys, cache.values)):
        store.normal_(generator=torch.Generator().manual_seed(seed))
    former = cache.keys.clone(), cache.values.clone()
    alignment.begin([3, 1])
    alignment.align(torch.tensor([4, 3]))
    assert alignment.offset.tolist() == [0, 1]
    for store, before in zip((cache.keys, cache.values), former, strict=True):
        assert torch.equal(store[:, 0, :4], before[:, 0, :4])
        assert torch.equal(store[:, 1, 1:4], before[:, 1, 2:5]), "moved to the left by one"


def test_rows_that_end_at_one_slot_already_are_not_copied():
    alignment = Alignment(1, torch.device("cpu"))
    decoder = decoder_of(alignment=alignment, requests=REQUESTS[:1])
    keys = decoder.cache.storage.keys
    list(steps_of(decoder, alignment))
    assert decoder.cache.storage.keys is keys
    assert texts_of(decoder, REQUESTS[:1]) == [expected(REQUESTS[0])]


def test_lock_step_keeps_the_least_that_an_active_row_accepts():
    rule = Recording(LockStep())
    decoder = decoder_of(rule)
    for report in steps_of(decoder):
        active, own, kept = rule.steps[-1]
        least = min(accepted for accepted, live in zip(own, active, strict=True) if live)
        assert [accepted for accepted, live in zip(kept, active, strict=True) if live] == [least] * sum(active)
        assert all(number == 0 for number, live in zip(map(len, report.tokens), active, strict=True) if not live)
    cut = [(own, kept) for active, own, kept in rule.steps if all(active) and own != kept]
    alone = [kept for active, _, kept in rule.steps if not all(active) and any(kept)]
    assert cut and alone, "no row was cut, or none went on after another had ended"


def test_the_model_of_lock_step():
    assert locked_model(0.5, num_rows=1, num_draft_tokens=2) == 1.75
    assert locked_model(0.5, num_rows=3, num_draft_tokens=2) == 1 + 1 / 8 + 1 / 64
    assert locked_model(1.0, num_rows=16, num_draft_tokens=4) == 5
    # 10 steps drafted at depth 1, of which 6 were kept; of these only 5 drafted on, and 2 were kept.
    summary = Summary(steps=11, emitted=19, drafted=[10, 9], accepted=[6, 2])
    assert acceptance(summary) == 8 / 16
    assert acceptance(Summary(steps=11, emitted=19, drafted=[10, 5], accepted=[6, 2])) == 8 / 15
    assert acceptance(Summary.empty(2)) == 0


def ways_of(runtime="eager", rows=2, draft=None, prompts=4, num_tokens=8, eager=None):
    eager = runtime == "eager" if eager is None else eager
    target = load(pair().target, dtype="float64", enforce_eager=eager)
    return prepare(
        Cell(runtime=runtime, num_rows=rows, num_draft_tokens=K),
        target=target,
        draft=load(draft or pair().draft, dtype="float64", enforce_eager=eager),
        prompts=[list(range(5, 8 + 3 * at)) for at in range(prompts)],
        num_tokens=num_tokens,
        clock=count().__next__,
    )


def test_ways_take_one_group_of_prompts_after_another():
    ways = ways_of()
    assert list(ways) == [PER_ROW, LOCK_STEP, REALIGNED, AGAIN]
    for way in ways.values():
        assert not way.done, "the first steps count for nothing"
        for _ in range(3):
            way.begin()
            way.decode()
        first, second, third = way.done
        assert first.sequences == third.sequences != second.sequences
        assert all(len(text) == 8 + 3 * at + 3 for at, text in enumerate(first.sequences + second.sequences))
        assert not way.decoder.batch.active.any() and Finish.RUNNING not in way.decoder.results().finish
        assert first.summary.emitted == 16 and first.num_steps * 2 >= first.summary.steps
        assert first.aligning == (first.num_steps - 1 if way is ways[REALIGNED] else 0), "a tick for every move"
    assert len({tuple(map(tuple, way.done[0].sequences)) for way in ways.values()}) == 1


def test_what_cannot_be_compared_is_refused(tmp_path):
    for options, said in (
        (dict(rows=3), "4 prompts make no batches of 3"),
        (dict(num_tokens=600), "leave the draft.s context of"),
        (dict(runtime="kernel", eager=True), "does not run so here"),
        (dict(runtime="gpu"), "known are eager, kernel"),
        (dict(rows=0), "num_rows=0: give at least 1"),
        (dict(draft=other_vocabulary(tmp_path / "other")), "vocabular"),
    ):
        with pytest.raises(ValueError, match=said):
            ways_of(**options)


@pytest.mark.slow
def test_every_batch_is_decoded_in_all_modes_and_shown(tmp_path, capsys, still_machine):
    records, out = measured("batched", tmp_path / "batched.jsonl", capsys)
    cells = [line for line in records if line["kind"] == "batched"]
    kinds = [(c["cell"]["runtime"], c["cell"]["num_rows"]) for c in cells]
    assert kinds == [("eager", 1), ("eager", 2), ("kernel", 1), ("kernel", 2)]
    for cell in cells:
        ways, rows = cell["ways"], cell["cell"]["num_rows"]
        assert ("realigned" in ways) == (cell["cell"]["runtime"] == "eager")
        assert all(way["same"] == 3 * rows and len(way["num_steps"]) == 3 for way in ways.values())
        alone, locked = ways["per row"], ways["lock-step"]
        assert alone["summary"]["emitted"] == locked["summary"]["emitted"] == 27 * rows
        assert locked["summary"]["steps"] >= alone["summary"]["steps"]
    assert "100% 100%" in out, "outputs of both other modes"
    assert (tmp_path / "batched.svg").read_text().startswith("<svg")


def test_a_cell_that_is_measured_again_stands_once(tmp_path, capsys, still_machine):
    one, output = ("--runtime", "eager", "--batch", "1", "--repeats", "1"), tmp_path / "batched.jsonl"
    assert small("batched", output, *one) == 0
    kept = records_of(output)
    output.write_text("".join(json.dumps({**line, "void": True}) + "\n" for line in kept))
    capsys.readouterr()
    assert run("batched", "--report", "--output", output) == 0
    assert capsys.readouterr().out.count("1.000 (void)") == 1
    assert small("batched", output, *one) == 0
    assert len(records_of(output)) == len(kept) + 1 and "1.000 (void)" not in capsys.readouterr().out


def test_outputs_that_differ_by_the_kernel_are_a_fault_and_no_figure(tmp_path, monkeypatch, still_machine):
    """As when a row that is cut goes on with what it would have said at the end of its draft."""
    right, output = LockStep.__call__, tmp_path / "batched.jsonl"

    def wrong(self, tree, logits, batch):
        outcome = right(self, tree, logits, batch)
        return replace(outcome, next=outcome.picks[:, -1])

    monkeypatch.setattr(LockStep, "__call__", wrong)
    with pytest.raises(RuntimeError, match="wrote different tokens"):
        small("batched", output, "--runtime", "kernel")
    assert not [line for line in records_of(output) if line["kind"] == "batched"]
