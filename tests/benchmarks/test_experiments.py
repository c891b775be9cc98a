"""The studies that train what they measure: their runs, what is compared, and what is shown of it."""

import os
import signal
from dataclasses import asdict

import numpy as np
import psutil
import pytest
import yaml

from benchmarks import blocks_and_text, exit_report, head_trees, joint_report, validation
from benchmarks.exit_report import DEPTH, HEADS
from benchmarks.joint_report import AFTERWARDS, ALONE, DISTILLED, JOINTLY
from benchmarks.small_targets import SIZES, common, shape, trained_target, training_of
from benchmarks.trainings import Training, finished, history, train_all
from paceline.core.stats import Summary
from paceline.draft_heads.files import read_head_config
from paceline.models.loading import configure
from paceline.train.config import TrainConfig
from tests.benchmarks.command import records_of, run
from tests.train.configs import recipe, write_target

FEW = "--num-prompts 8 --max-tokens 8".split()


def summary(emitted, steps=10, drafted=20, accepted=0):
    return asdict(Summary(steps=steps, emitted=emitted, drafted=[drafted], accepted=[accepted]))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("experiments"))


def training(root, name, **fields):
    heads = [{"kind": "medusa", "config": {"depth": 2}}]
    config = yaml.safe_load(recipe(root, root / "unused", heads=heads, **fields).read_text())
    del config["output"]
    return Training(name=name, config=config)


@pytest.fixture(scope="module")
def work(root):
    """Two runs, trained at once, one with several validations."""
    said = list[str]()
    often = {"every": 3, "prompts": 4, "prompt_tokens": 4, "tokens": 8, "k": 2}
    many = training(root, "many", schedule={"steps": 12, "warmup": 2}, validation=often)
    train_all([training(root, "one"), many], root / "work", said.append, jobs=2)
    assert said[-1].startswith("training: 2 of 2 runs done")
    return root / "work"


@pytest.mark.slow
def test_runs_are_finished_once_and_those_of_other_settings_are_refused(root, work):
    said = list[str]()
    assert finished(training(root, "one"), work) and (work / "many" / "medusa" / "config.json").exists()
    train_all([training(root, "one")], work, said.append, jobs=1)
    assert not said, "nothing is started again"
    with pytest.raises(ValueError, match="one holds a run of other settings; give another --work folder"):
        train_all([training(root, "one", seed=7)], work, said.append, jobs=1)


def test_a_run_that_fails_says_why(root):
    with pytest.raises(ValueError, match=r"(?s)training broken ended with 2: .*schedule.steps=0"):
        train_all([training(root, "broken", schedule={"steps": 0})], root / "work", lambda _: None, jobs=1)


@pytest.mark.slow
def test_sigterm_ends_the_runs_with_a_checkpoint(root):
    long = training(root, "long", schedule={"steps": 100_000, "warmup": 2})

    def end_once_begun(_):
        if (history(long, root / "work") or long) is not long:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        train_all([long], root / "work", end_once_begun, jobs=1)
    assert not [child for child in psutil.Process().children() if "train" in child.cmdline()], "none goes on"
    assert list((root / "work" / "long" / "checkpoints").iterdir()) and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("study", "lacking"), [("lengths", "matplotlib"), ("joint-training", "scipy"), ("validation", "scipy")]
)
def test_a_package_that_is_missing_is_named_before_anything_runs(study, lacking, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.study.find_spec", lambda name: None if name == lacking else object())
    assert run(study, "--output", tmp_path / "raw.jsonl") == 2
    assert f"run pip install {lacking}" in capsys.readouterr().err and not (tmp_path / "raw.jsonl").exists()


def test_outputs_that_are_not_generated_are_named(tmp_path, capsys):
    assert run("blocks-and-text", "--own", tmp_path / "own.npy", "--output", tmp_path / "raw.jsonl") == 2
    assert "python demo/recipes/zoo.py --only writes it" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "least", "most"), [("1M", 0.9e6, 1.2e6), ("3M", 2.7e6, 3.3e6), ("7M", 6.7e6, 7.5e6)])
def test_targets_have_the_sizes_that_they_are_named_by(size, least, most):
    config = configure(shape(size, 4096), size)
    layers, width, inner, heads, kv_heads = SIZES[size]
    head = width // heads
    per_layer = width * head * (2 * heads + 2 * kv_heads) + 3 * width * inner
    assert least < 4096 * width + layers * per_layer < most and config.num_layers == layers


def test_a_target_that_is_not_trained_is_named(tmp_path):
    with pytest.raises(ValueError, match="target-1M/target is not there; train it first: python -m benchmarks small"):
        trained_target("1M", tmp_path)


def test_exits_are_at_the_same_shares_of_every_target():
    layers = {
        size: [head.config(SIZES[size][0])["exit_layer"] for head in HEADS if head.share and not head.recycle]
        for size in SIZES
    }
    assert layers == {"1M": [1, 2, 4, 2], "3M": [2, 3, 6, 3], "7M": [2, 4, 8, 4]}
    assert len({head.name for head in HEADS}) == len(HEADS) == 10
    assert sum(head.recycle for head in HEADS) == 4, "every exit with recycled states too"


def joint_record(head, how, seed, *, loss=2.0, emitted=20):
    found = {"cell": {"head": head, "how": how, "seed": seed}, "void": False}
    if how == JOINTLY:
        found |= {"losses": [loss - 0.5, loss + 0.5], "curve": [[1, 2], [loss + 1, loss]]}
    if head != ALONE:
        found["summaries"] = {
            "0.0": {"sound": [], "num_looping": 2},
            "1.0": {"sound": [summary(emitted), summary(emitted + 10)], "num_looping": 0},
        }
    return found


def joint_records():
    losses = {ALONE: (2.0, 3.0, 4.0), "mtp": (2.1, 3.2, 4.3)}
    targets = [joint_record(head, JOINTLY, seed, loss=own[seed]) for head, own in losses.items() for seed in range(3)]
    return [
        *targets,
        *(joint_record("mtp", how, seed, emitted=10) for how in (AFTERWARDS, DISTILLED) for seed in range(3)),
    ]


def test_losses_are_compared_seed_by_seed():
    alone, mtp = joint_report.loss_lines(joint_records())
    assert (alone.head, alone.loss, alone.difference) == (ALONE, 3.0, None)
    assert mtp.loss == pytest.approx(3.2) and mtp.difference is not None and mtp.difference.value == pytest.approx(0.2)
    far = 4.302653 * 0.1 / 3**0.5  # Student's t of two degrees of freedom
    assert (mtp.difference.low, mtp.difference.high) == (pytest.approx(0.2 - far), pytest.approx(0.2 + far))
    assert mtp.seeds == "+0.1000, +0.2000, +0.3000"
    assert joint_report.differences(joint_records(), "mtp")[2] == pytest.approx([0.3, 0.3])


def test_one_seed_says_nothing_of_others():
    found = joint_report.over_seeds([0.5])
    assert (found.low, found.high) == (-float("inf"), float("inf"))


def test_heads_are_compared_over_all_seeds_without_loops():
    jointly, afterwards, _ = joint_report.head_lines(joint_records())
    assert (jointly.how, jointly.greedy, jointly.num_looping) == (JOINTLY, None, 6)
    assert jointly.sampled is not None and jointly.sampled.value == 2.5
    assert afterwards.sampled is not None and afterwards.sampled.value == 1.5
    assert "early" not in joint_report.draw(joint_records(), title="t") and "mtp" in joint_report.draw(
        joint_records(), title="t"
    )


def exit_record(**changes):
    sides = {"plain": 4.0, f"prophet-1 {DEPTH}": 2.5, "prophet-1 2": 2.0, "control": 4.0}
    summaries = {name: [summary(20, steps=20 if name in ("plain", "control") else 8)] for name in sides}
    given = {
        "cell": {"size": "1M", "temperature": 0.0, "batch_size": 1},
        "best": {"prophet-1": 2},
        "num_looping": 3,
        "seconds": {name: [[value], [value]] for name, value in sides.items()},
        "drafting": {name: 1.0 for name in sides},
        "summaries": summaries,
        "void": False,
    }
    return given | changes


def test_a_head_is_fast_at_its_best_length_and_accepts_at_the_same_as_others():
    (line,) = exit_report.lines_of(exit_record())
    assert (line.head, line.depth, line.speedup.value, line.tokens.value) == ("prophet-1", 2, 2.0, 2.5)
    assert line.cost == pytest.approx(1.0 / 40 / (8.0 / 40)), "a drafted token's seconds over those of a plain step"
    assert (line.where, line.control, line.num_looping) == ("target of 1M, greedy, batch 1", 1.0, 3)


def test_void_cells_have_no_speed_in_the_picture():
    picture = exit_report.draw(
        [*exit_report.lines_of(exit_record()), *exit_report.lines_of(exit_record(void=True))], title="t"
    )
    assert "prophet-1" in picture and "1M" in picture


def counted(drafted, *accepted):
    return Summary(steps=drafted, emitted=drafted + sum(accepted), drafted=[drafted] * 3, accepted=list(accepted))


def test_acceptance_at_a_depth_is_of_the_drafts_that_reach_it():
    first, second = blocks_and_text.acceptance_by_depth([counted(10, 8, 4, 0), counted(10, 4, 0, 0)])
    assert (first.value, second.value) == (0.6, pytest.approx(4 / 12))
    few = blocks_and_text.acceptance_by_depth([counted(10, 8, 4, 0)] * 2 + [counted(10, 0, 0, 0)])
    assert [one.value for one in few] == [16 / 30, 0.5, 0.0], "a prompt that does not reach a depth says nothing of it"
    three = blocks_and_text.acceptance_by_depth([counted(10, 8, 4, 1), counted(10, 8, 4, 1)])
    assert [one.value for one in three] == [0.8, 0.5, 0.25], "and no depth is left out that drafts reach"


def block_record(**changes):
    names = [f"{head} {depth}" for head in blocks_and_text.HEADS for depth in blocks_and_text.DEPTHS]
    given = {
        "cell": {"text": blocks_and_text.OWN, "temperature": 0.0},
        "seconds": {"plain": [[4.0, 4.0]], "control": [[4.0, 4.0]], **{name: [[2.0, 2.0]] for name in names}},
        "drafting": dict.fromkeys(names, 1.0),
        "summaries": {
            "plain": [asdict(counted(20, 0, 0, 0))] * 2,
            **{name: [asdict(counted(10, 8, 4, 1))] * 2 for name in names},
        },
        "void": False,
    }
    return given | changes


def test_a_draft_costs_what_its_tokens_cost():
    line = blocks_and_text.lines_of(block_record())[0]
    assert (line.head, line.depth, line.speedup.value, line.tokens.value) == ("autoregressive", 1, 2.0, 2.3)
    assert line.draft == pytest.approx((1.0 / 60) / (8.0 / 40)), "seconds of a drafted token over those of a plain step"
    assert blocks_and_text.lines_of(block_record())[3].draft == pytest.approx(7 * (1.0 / 60) / (8.0 / 40))


def test_what_own_outputs_teach_is_compared_by_output(tmp_path):
    def record(text, *steps):
        given = block_record(cell={"text": text, "temperature": 0.0}, kind="blocks-and-text", run="one")
        sides = {name: [asdict(counted(one, 8, 4, 1)) for one in steps] for name in given["summaries"]}
        return given | {"summaries": sides}

    study = blocks_and_text.BlocksAndText(output=tmp_path / "raw.jsonl")
    records = [record(blocks_and_text.OWN, 10, 20), record(blocks_and_text.CORPUS, 15, 18)]
    *_, table = study.sections({"run": "one", "conditions": {"isa": "avx2"}}, records)
    assert table.rows() == [[head, "greedy", "1.100 [0.900, 1.500]"] for head in blocks_and_text.HEADS]


def test_a_tree_is_shown_with_its_tokens_and_levels():
    shapes = {"chain of 2": [[0], [0, 0]], "tree of 3": [[0], [1], [0, 0]]}
    sides = {"plain": 4.0, "chain of 2": 2.0, "tree of 3": 2.5, "control": 4.0}
    record = exit_record(
        cell={"head": "medusa", "temperature": 0.0},
        shapes=shapes,
        seconds={name: [[value], [value]] for name, value in sides.items()},
        summaries={name: [summary(20, steps=8)] for name in sides},
    )
    chain, tree = head_trees.lines_of(record)
    assert (chain.shape, chain.nodes, chain.depth, chain.speedup.value) == ("chain of 2", 2, 2, 2.0)
    assert (tree.shape, tree.nodes, tree.depth, tree.speedup.value) == ("tree of 3", 3, 2, 1.6)


def test_what_is_no_head_is_named(tmp_path, capsys):
    assert run("head-trees", "--heads", tmp_path, "--output", tmp_path / "trees.jsonl") == 2
    assert "no draft head; make zoo-train" in capsys.readouterr().err


def served_record(run, value, served, temperature=1.0, **more):
    return {
        "cell": {"run": run, "head": "mtp", "temperature": temperature, "hash": ""},
        "depth": 4,
        "validated": [value, value - 0.1, value + 0.1] if value else [None] * 3,
        "served": [summary(round(10 * served))] if served else [],
        **more,
    }


def test_what_one_side_could_not_measure_is_left_out():
    records = [served_record("a-0", 2.0, 3.0), served_record("b-0", None, 2.0), served_record("c-0", 2.0, 0)]
    (point,) = validation.points_of(records)
    assert point.run == "a-0" and point.miss == pytest.approx(0.5)


def test_drawing_has_the_curves_of_runs_that_kept_them(tmp_path):
    curve = {"steps": [250, 500], "validated": [1.5, 1.9]}
    records = [served_record("a-0", 2.0, 3.0), served_record("b-0", 1.9, 2.0, curve=curve)]
    study, run = validation.ValidationStudy(output=tmp_path / "raw.jsonl"), {"run": "one", "conditions": {}}
    own = [record | {"kind": "validation", "run": "one"} for record in records]
    with_curves, without = (study.draw(run, some, title="") for some in (own, own[:1]))
    assert "training steps" in with_curves and "training steps" not in without


def test_correlations_of_values_and_of_ranks():
    points = validation.points_of([served_record(str(at), 1.0 + at, 1.0 + at**3) for at in range(6)])
    assert validation.correlation(points, ranks=True).value == pytest.approx(1.0)
    assert 0.8 < validation.correlation(points).value < 1.0
    turned = validation.points_of([served_record(str(at), 1.0 + at, 9.0 - at) for at in range(6)])
    assert validation.correlation(turned).value == pytest.approx(-1.0)
    assert validation.correlation([points[0]] * 3) is None, "heads that are all alike"


@pytest.mark.slow
def test_the_validation_is_that_of_the_weights_which_were_written(work):
    history = validation.runs_below([work])["many"]
    name = "validation.medusa.greedy.tokens_per_step"
    values = [line[name] for line in history.validations if line.get(name) is not None]
    chosen = validation.written(history)
    assert chosen.get(name) == max(values) if values else chosen == history.validations[-1]


def test_folders_without_finished_runs_are_named(tmp_path):
    with pytest.raises(ValueError, match="no RUN of it is a finished training run with heads"):
        validation.runs_below([tmp_path])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_studies_of_small_targets_train_measure_and_go_on(tmp_path, capsys):
    work = ("--work", tmp_path / "work")
    assert run("small-targets", *work, *"--sizes 1M --steps 40 --output".split(), tmp_path / "targets.jsonl") == 0
    assert "held-out loss" in capsys.readouterr().out
    assert (
        run(
            "exits-and-prophets",
            *work,
            *FEW,
            *"--sizes 1M --steps 2 --temperatures 1 --batch 1".split(),
            "--output",
            tmp_path / "exits.jsonl",
        )
        == 0
    )
    (line,) = [one for one in records_of(tmp_path / "exits.jsonl") if one["kind"] == "exits-and-prophets"]
    assert set(line["best"]) == {head.name for head in HEADS}
    for head in HEADS:
        config = read_head_config(tmp_path / "work" / "exits-1M-2" / head.name)
        assert config.kind == head.kind
    again = [*"joint-training --size 1M --steps 4 --seeds 0".split(), *work, *FEW, "--output", tmp_path / "joint.jsonl"]
    assert run(*again) == 0
    before = (tmp_path / "joint.jsonl").read_bytes()
    assert run(*again) == 0 and (tmp_path / "joint.jsonl").read_bytes() == before, "nothing is done twice"
    assert "of each seed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_blocks_are_measured_and_their_validation_is_compared_with_serving(tmp_path, capsys):
    tokens = np.random.default_rng(0).integers(1, 4096, 40_000).astype(np.uint16)
    tokens[::100] = 0  # ends of documents
    np.save(tmp_path / "own.npy", tokens)
    blocks = ["--work", tmp_path / "work", *FEW, *"--steps 2 --temperatures 1 --own".split(), tmp_path / "own.npy"]
    assert run("blocks-and-text", *blocks, "--output", tmp_path / "blocks.jsonl") == 0
    assert "accepted, by depth" in capsys.readouterr().out
    assert run("validation", "--runs", tmp_path / "work", *FEW, "--output", tmp_path / "validation.jsonl") == 0
    assert "correlation" in capsys.readouterr().out


def test_configurations_of_the_runs_are_those_of_the_trainer(tmp_path):
    made = training_of("1M", tmp_path, steps=8)
    config = TrainConfig.model_validate({**made.config, "output": "x"})
    assert config.target.is_trained and common(tmp_path, steps=8)["schedule"] == {"steps": 8, "warmup": 2}
