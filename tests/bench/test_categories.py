import pytest

from paceline.bench.figures import best, category_figures_of, figures_of
from paceline.bench.raw import RawFile
from paceline.bench.runner import Configuration, Sample
from paceline.bench.sweep import Axes, Protocols, run_sweep
from tests.bench.scripted import counts

CATEGORIES = ["writing", "maths", "writing", "maths"]
STEPS = {"writing": 2, "maths": 4}  # for four tokens


class Bench:
    """Four texts in parts of a batch: a drafted text of maths takes 2 s, of writing 1 s, and a plain one 4 s."""

    def __init__(self):
        self.now = 0.0

    def clock(self):
        return self.now

    def _configuration(self, name, cell, seconds):
        def part(categories):
            self.now += sum(seconds[category] for category in categories)
            texts = tuple(counts(STEPS[category], 4, [STEPS[category]], [1]) for category in categories)
            return Sample(tokens=((1, 2, 3, 4),) * len(categories), summary=None, texts=texts)

        groups = [CATEGORIES[at : at + cell.batch_size] for at in range(0, 4, cell.batch_size)]
        return Configuration(name=name, parts=[lambda group=group: part(group) for group in groups])

    def plain(self, name, cell):
        return self._configuration(name, cell, {"writing": 4, "maths": 4})

    def candidate(self, name, cell):
        return self._configuration(name, cell, {"writing": 1, "maths": 2 if cell.num_draft_tokens == 2 else 3})


def measure(path, categories=CATEGORIES, batch_sizes=(1, 2)):
    bench, raw = Bench(), RawFile(path)
    run_sweep(
        Axes(
            drafters=["ngram"], num_draft_tokens=[1, 2], batch_sizes=batch_sizes, temperatures=[0], max_tokens=[4]
        ).cells(),
        workbench=bench,
        raw=raw,
        conditions={"dtype": "float32", "suite": "mine", "prompts": {"categories": categories}},
        notes={},
        protocol=Protocols(repeats=3, attempts=1),
        clock=bench.clock,
    )
    return raw.records


def categories_in(records):
    return category_figures_of(figures_of(records))


def test_each_category_has_its_own_figures(tmp_path):
    lines = [line for line in categories_in(measure(tmp_path / "raw.jsonl")) if line.cell.batch_size == 1]
    found = {(line.cell.num_draft_tokens, line.category): line for line in lines}
    assert len(lines) == 4
    assert {key: line.category_speedup.value for key, line in found.items()} == pytest.approx(
        {(1, "writing"): 4, (1, "maths"): 4 / 3, (2, "writing"): 4, (2, "maths"): 2}
    )
    assert found[2, "writing"].tokens_per_step == 2 and found[2, "maths"].tokens_per_step == 1
    assert found[2, "writing"].acceptance == 1 / 2 and found[2, "maths"].acceptance == 1 / 4
    assert {len(line.texts) for line in lines} == {2}


def test_mixed_batches_have_no_speedup_of_one_category(tmp_path):
    lines = [line for line in categories_in(measure(tmp_path / "raw.jsonl")) if line.cell.batch_size == 2]
    assert [line.category_speedup for line in lines] == [None] * 4
    assert {line.tokens_per_step for line in lines} == {1, 2}


def test_batches_of_one_category_have_one(tmp_path, monkeypatch):
    ordered = sorted(CATEGORIES)
    monkeypatch.setattr("tests.bench.test_categories.CATEGORIES", ordered)
    lines = categories_in(measure(tmp_path / "raw.jsonl", categories=ordered, batch_sizes=[2]))
    assert [line.category_speedup.value for line in lines] == pytest.approx([4 / 3, 4, 2, 4])


def test_looping_texts_count_for_speed_only(tmp_path):
    records = measure(tmp_path / "raw.jsonl")
    for record in records:
        if record["kind"] == "cell":
            record["texts"][0]["looping"] = record["texts"][2]["looping"] = True
    line = categories_in(records)[0]
    assert (line.category, line.num_looping, line.tokens_per_step, line.acceptance) == ("writing", 2, None, None)
    assert line.category_speedup.value == 4


@pytest.mark.parametrize("categories", [None, []])
def test_prompts_without_categories_have_no_figures(tmp_path, categories):
    records = measure(tmp_path / "raw.jsonl", categories=categories)
    assert categories_in(records) == []


def test_reports_show_the_best_length_of_each_drafter(tmp_path):
    records = measure(tmp_path / "raw.jsonl")
    lines = category_figures_of(best(figures_of(records)))
    assert [(line.cell.num_draft_tokens, line.category) for line in lines] == [(2, "writing"), (2, "maths")] * 2
