"""Every option is timed in one and the same step, and the table says what it adds to it."""

from itertools import count

import pytest
import torch

from benchmarks.sampling_cost import (
    AGAIN,
    ALL,
    CONTEXT,
    GREEDY,
    SAMPLED,
    Cell,
    Steps,
    added,
    options_for,
    turns_of,
)
from paceline.api import load
from paceline.api.loading import runnable
from paceline.bench.timing import time_in_turn
from tests.api.checkpoints import pair
from tests.benchmarks.command import measured, records_of, small


def prepared(rows=2, k=3):
    target, draft = (load(path, dtype=torch.float32, device="cpu") for path in (pair().target, pair().draft))
    models = {"target": runnable(target), "draft": runnable(draft)}
    return Steps(Cell(num_rows=rows, num_draft_tokens=k), **models, tokenizer=target.tokenizer, itemsize=4)


@pytest.mark.parametrize("k", [0, 3])
def test_a_rewound_step_is_the_same_step_again(k):
    one = prepared(k=k)
    for option in (GREEDY, ALL, "repetition_penalty"):
        found = []
        for _ in range(2):
            one.rewind(option)
            one.step()
            found.append(one._decoder.results())
            one.rewind(SAMPLED)
            one.step()
        assert found[0].tokens == found[1].tokens and found[0].num_drafted == [k, k]
        assert (found[0].logprobs == found[1].logprobs) and bool(found[0].logprobs[0]) == (option == ALL)


def test_options_change_steps():
    """An option that does nothing would cost nothing."""
    one = prepared(rows=1, k=0)
    options = options_for(320)
    assert len({option.name for option in options}) == len(options)
    for option in options:
        one.rewind(option.name)
        batch = one._decoder.batch
        assert int(batch.length[0]) == CONTEXT
        plain = option.reference is None and option.name == GREEDY
        bare = not (batch.processing.any or batch.sampling.any_sampled or batch.wants_tensors)
        assert bare == plain, option.name
        if option.processing.counts:
            assert int(batch.processing.counts[:, :-1].sum()) > 0, "nothing of the new text is counted"


def test_a_file_is_continued_and_printed(tmp_path, capsys, still_machine):
    path = tmp_path / "options.jsonl"
    records, out = measured("sampling-cost", path, capsys)
    assert [record["kind"] for record in records] == ["run"] + 2 * ["options"]
    assert all(text in out for text in ("1 row, plain", "1 row, k = 2", "logprobs=5", "floor", ALL))
    first = path.read_text()
    assert small("sampling-cost", path, "--rows", "1,2") == 0
    assert path.read_text().startswith(first) and len(records_of(path)) == 5


def test_figures_are_paired_ratios_to_the_options_own_reference(still_machine):
    turns = turns_of(prepared(rows=1, k=0))
    record = turns.found(time_in_turn(turns.calls, before=turns.before, repeats=3, seconds=0, clock=count().__next__))
    assert record["controls"] == {GREEDY: 1.0, SAMPLED: 1.0} and turns.controls == AGAIN
    assert all(added(record, option).value == 0 for option in record["references"])
    seconds = {name: [2.0, 4.0, 8.0] for name in record["seconds"]}
    seconds["temperature"], seconds["top_k=50"], seconds[SAMPLED] = [2.1, 4.2, 8.4], [3.0, 6.0, 12.0], [2.5, 5.0, 10.0]
    changed = {**record, "seconds": seconds}
    found = [added(changed, option).value for option in ("temperature", "top_k=50", AGAIN[GREEDY])]
    assert found == pytest.approx([0.05, 0.2, 0.0])
