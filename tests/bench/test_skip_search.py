"""The search for sub-layers to skip: what is tried, kept and measured."""

import json
from dataclasses import replace

import pytest
import torch

from paceline.api.loading import load
from paceline.bench.skip_search import SkipSettings, as_set, measure, open_study, search, split
from paceline.bench.skip_study import NUM_FIRST, SkipStudy, Trial, best_of
from paceline.models.loading import save
from paceline.models.sublayers import SkippedSublayers
from tests import tiny
from tests.api.checkpoints import CONTEXT, VOCAB, make_tokenizer, pair

LAYERS = 6
SETTINGS = {"seed": 0}
PROMPTS = [[7, 3, 5], [1, 2], [9, 8, 7, 6], [4]]
QUICK = SkipSettings(num_draft_tokens=3, max_tokens=12)


def study_in(folder, **options):
    given = {"num_layers": LAYERS, "settings": SETTINGS, "seed": 0, **options}
    return SkipStudy(folder / "trials.jsonl", **given)


def time_of(sublayers):
    """Skipping early MLPs pays, any attention costs."""
    return 1.0 - 0.1 * len(sublayers.mlp & {1, 2}) + 0.05 * len(sublayers.attention) + 0.1 * len(sublayers.mlp & {3, 4})


def advance(study, count):
    tried = []
    for _ in range(count):
        asked, sublayers = study.ask()
        study.tell(asked, Trial(sublayers=sublayers, relative_time=time_of(sublayers), tokens_per_step=2.0))
        tried.append(sublayers)
    return tried


def test_the_first_and_the_last_layer_are_kept(tmp_path):
    for sublayers in advance(study_in(tmp_path), 2 * NUM_FIRST):
        assert not (sublayers.attention | sublayers.mlp) & {0, LAYERS - 1}
        assert sublayers.attention | sublayers.mlp <= set(range(1, LAYERS - 1))


def test_the_sampler_finds_what_is_fastest(tmp_path):
    study = study_in(tmp_path)
    advance(study, 80)
    assert study.best.sublayers == SkippedSublayers(mlp=frozenset({1, 2}))
    late = [trial.relative_time for trial in study.trials[-20:]]
    assert sum(late) / 20 < sum(trial.relative_time for trial in study.trials[:NUM_FIRST]) / NUM_FIRST - 0.1


def test_a_search_goes_on_where_it_was(tmp_path):
    whole = advance(study_in(tmp_path / "..", settings={"seed": 1}), NUM_FIRST)
    first = advance(study_in(tmp_path), 5)
    lines = (tmp_path / "trials.jsonl").read_text()
    again = study_in(tmp_path)
    assert [trial.sublayers for trial in again.trials] == first
    assert first + advance(again, NUM_FIRST - 5) == whole
    assert (tmp_path / "trials.jsonl").read_text().startswith(lines)
    assert len(study_in(tmp_path).trials) == NUM_FIRST


def test_a_trial_is_on_the_disk_before_the_next_and_a_torn_line_is_left_out(tmp_path):
    study = study_in(tmp_path)
    for count in range(1, 4):
        advance(study, 1)
        assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 1 + count
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"kind": "skip-tri')
    again = study_in(tmp_path)
    assert len(again.trials) == 3
    advance(again, 1)
    assert len(study_in(tmp_path).trials) == 4


def test_other_settings_are_another_search_in_the_same_file(tmp_path):
    advance(study_in(tmp_path), 3)
    assert study_in(tmp_path, settings={"seed": 5}).trials == []
    assert len(study_in(tmp_path).trials) == 3


def test_another_file_is_refused(tmp_path):
    (tmp_path / "trials.jsonl").write_text('{"no": "benchmark"}\n')
    with pytest.raises(ValueError, match="no line of a benchmark"):
        study_in(tmp_path)


def test_the_best_are_of_different_sets():
    sets = [SkippedSublayers(mlp=frozenset({layer})) for layer in (1, 2, 1, 3)]
    trials = [
        Trial(sublayers=one, relative_time=time, tokens_per_step=1.0)
        for one, time in zip(sets, (0.9, 0.8, 0.7, 1.2), strict=True)
    ]
    assert best_of(trials, 2) == [trials[2], trials[1]]
    assert len(best_of(trials, 9)) == 3


def test_every_second_prompt_is_kept_from_the_search():
    assert split(PROMPTS) == ([[7, 3, 5], [9, 8, 7, 6]], [[1, 2], [4]], True)
    assert split(PROMPTS[:1]) == (PROMPTS[:1], PROMPTS[:1], False)


def test_search_and_measurement_of_a_model(tmp_path):
    target = load(pair().target, device="cpu")
    study, seen = open_study(tmp_path / "a.jsonl", target, PROMPTS[:2], QUICK), []
    search(
        study, target, PROMPTS[:2], QUICK, num_trials=4, progress=lambda done, best: seen.append((done, best is None))
    )
    assert seen == [(0, True), (1, False), (2, False), (3, False), (4, False)]
    assert all(trial.relative_time > 0 and 1 <= trial.tokens_per_step <= 4 for trial in study.trials)
    found = measure(study.trials, target, PROMPTS[2:], QUICK, held_out=True, repeats=2)
    assert found.sublayers in [trial.sublayers for trial in study.trials]
    assert found.identical and found.held_out and 1 <= found.tokens_per_step <= 4
    record = as_set(found, QUICK, num_trials=4)
    assert record.num_draft_tokens == 3 and json.dumps(dict(record.measured))
    assert record.measured["pays"] is (found.speedup.low > 1)


def test_a_search_under_other_conditions_begins_anew(tmp_path):
    target = load(pair().target, device="cpu")
    search(
        open_study(tmp_path / "a.jsonl", target, PROMPTS[:1], QUICK),
        target,
        PROMPTS[:1],
        QUICK,
        num_trials=2,
        progress=lambda *_: None,
    )

    def opened(prompts=PROMPTS[:1], **changes):
        return open_study(tmp_path / "a.jsonl", target, prompts, replace(QUICK, **changes))

    assert len(opened().trials) == 2
    assert not opened(num_draft_tokens=2).trials and not opened(prompts=PROMPTS[:2]).trials
    other = load(pair().draft, device="cpu")
    assert not open_study(tmp_path / "a.jsonl", other, PROMPTS[:1], QUICK).trials


def test_a_model_of_two_layers_has_nothing_to_skip(tmp_path):
    model = tiny.llama(vocab_size=VOCAB, max_position_embeddings=CONTEXT, num_hidden_layers=2)
    save(tiny.native(model), model.config.to_dict(), tmp_path / "two", dtype=torch.float64)
    make_tokenizer().save(str(tmp_path / "two" / "tokenizer.json"))
    with pytest.raises(ValueError, match="has 2 layers, and the first and the last are kept: there is nothing to skip"):
        open_study(tmp_path / "a.jsonl", load(tmp_path / "two", device="cpu"), PROMPTS, QUICK)
