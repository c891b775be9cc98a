"""The sentence and the bars that a page opens with follow from the raw figures."""

from dataclasses import replace

from paceline.bench.headline import headline_of
from tests.bench import test_figures as cells
from tests.bench import test_head_to_head as pairs
from tests.bench.scripted import Bench


def test_the_sentence_names_the_fastest_and_its_speedup(tmp_path):
    records = cells.measure(tmp_path, Bench(seconds={"ngram k=2": 0.5})).records
    headline = headline_of(records)
    assert headline.sentence == (
        "Paceline, drafting with ngram k=2, writes 4.00x [4.00-4.00] as many tokens per second as without a draft "
        "(float32, 1 thread, batch 1, temperature 0)."
    )
    assert [(one.engine, one.draft, one.tokens_per_second.value) for one in headline.speeds] == [
        ("Paceline", "", 4),
        ("Paceline", "ngram k=2", 16),
    ]


def test_peers_stand_beside_ours(tmp_path):
    seconds = {"model k=2": 0.5, "other": 4.0, "other-draft k=2": 0.8}
    axes = replace(pairs.AXES, peers=[pairs.OTHER])
    records = pairs.measure(tmp_path / "raw.jsonl", Bench(seconds=seconds), axes=axes)
    peer = {"kind": "peer", "run": records[0]["run"], "peer": "other", "version": "1", "missing": None}
    headline = headline_of([*records, peer])
    assert headline.sentence.endswith("and 1.60x [1.60-1.60] as many as the fastest peer (other-draft k=2).")
    assert [(one.engine, one.draft, round(one.tokens_per_second.value)) for one in headline.speeds] == [
        ("Paceline", "", 4),
        ("Paceline", "model k=2", 16),
        ("other", "", 2),
        ("other", "draft k=2", 10),
    ]


def test_void_cells_are_not_in_it(tmp_path):
    """The ninth cell is the first of the longer texts, which the sentence is about."""
    headline = headline_of(cells.measure(tmp_path, Bench([1] * 8 + [1.5])).records)
    assert (headline.num_void, headline.num_cells) == (1, 4)
    assert "ngram k=1" not in headline.sentence
