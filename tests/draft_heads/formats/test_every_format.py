"""What holds of every format: its files are detected as its own, and read as what was written, bit for bit."""

from pathlib import Path

import pytest
import torch

import paceline
from paceline.api.build import build_drafter
from paceline.api.export import export_head, read_head
from paceline.api.head_inspection import describe_head
from paceline.api.loading import load
from paceline.draft_heads.files import is_head, save_head
from paceline.draft_heads.formats import FORMATS
from paceline.draft_heads.formats.base import HeadFiles
from paceline.draft_heads.formats.detection import detect, find_format
from paceline.models.directory import is_own_head
from paceline.models.draft_layers import holds_draft_layers
from paceline.models.fingerprint import fingerprint
from tests.api.checkpoints import pair
from tests.draft_heads.formats.examples import EXAMPLES
from tests.draft_heads.test_prophet import make

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"
PROMPT = [7, 3, 5, 7, 3, 5, 7]
PARAMS = paceline.SamplingParams(max_tokens=16, temperature=0.8, seed=3)
IN_TARGET = ("mtp_deepseek", "mtp_mimo", "mtp_qwen")  # written into a copy of the target's directory
every_format = pytest.mark.parametrize("name", EXAMPLES)


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu", enforce_eager=True)


@pytest.fixture
def saved(name, target, tmp_path):
    """The directories of a head in our format, and in that called ``name``."""
    kind, options = EXAMPLES[name]
    head = make(kind, target.lm, **options)
    save_head(head, tmp_path / "own", target_name=target.name, fingerprint=fingerprint(target.lm))
    export_head(tmp_path / "own", tmp_path / "theirs", target=target, format=name)
    return tmp_path


def test_every_format_has_an_example_and_a_row_in_the_table():
    assert set(EXAMPLES) == set(FORMATS.builtin)
    table = PAGE.read_text(encoding="utf-8").partition("\n## Formats\n")[2].partition("\n## ")[0]
    for name in FORMATS.builtin:
        assert f"\n| `{name}` |" in table, name
        assert find_format(name).name == name and find_format(name).title in table, name


def drafter_of(name, folder):
    """As which a head in the format called ``name`` is given: layers in their target's directory by their name."""
    return f"mtp:{folder}" if name in IN_TARGET else folder


@every_format
def test_files_are_detected_as_their_own(name, saved):
    assert is_head(saved / "theirs") is (name not in IN_TARGET) and not is_own_head(saved / "theirs")
    assert holds_draft_layers(saved / "theirs") is (name in IN_TARGET)
    assert detect(HeadFiles(saved / "theirs")).name == name


@every_format
def test_round_trips_are_bitwise(name, saved, target):
    export_head(saved / "theirs", saved / "again", target=target, format=name)
    first, second = HeadFiles(saved / "theirs"), HeadFiles(saved / "again")
    assert first.config == second.config and first.headers.keys() == second.headers.keys()
    assert all(torch.equal(first.tensor(one), second.tensor(one)) for one in first.headers)
    export_head(saved / "theirs", saved / "back", target=target)
    own, back = HeadFiles(saved / "own"), HeadFiles(saved / "back")
    assert own.headers.keys() == back.headers.keys()
    assert all(torch.equal(own.tensor(one), back.tensor(one)) for one in own.headers)


@pytest.mark.one_in(4)
@every_format
def test_head_drafts_as_the_one_that_it_was_written_from(name, saved, target):
    def accepted(drafter):
        [result] = paceline.generate(target, [PROMPT], PARAMS, drafter=drafter, num_draft_tokens=3)
        return result.token_ids, result.stats.drafted, result.stats.accepted

    plain = paceline.generate(target, [PROMPT], PARAMS, drafter=None)[0].token_ids
    own = accepted(saved / "own")
    assert accepted(drafter_of(name, saved / "theirs")) == own and own[0] == plain and sum(own[1]) > 0
    ours = build_drafter(saved / "own", target=target)
    theirs = build_drafter(drafter_of(name, saved / "theirs"), target=target)
    assert type(ours) is type(theirs)


@every_format
def test_inspection_names_the_source_of_every_field_that_the_files_decide(name, saved, target):
    found = describe_head(saved / "theirs", name="head", target=target)
    assert found["head"]["kind"] == EXAMPLES[name][0] and found["head"]["format"] == find_format(name).title
    head = read_head(saved / "theirs", target=target).head
    assert found["head"]["hidden_states"] == list(head.taps)
    assert found["assumptions"].keys() >= head.config.model_dump().keys()
    unsaid = {one for one, said in found["assumptions"].items() if said["from"] == "default"}
    trained = {"anchors", "depth", "depth_decay", "detach_steps", "gamma", "noise"} | {
        one for one in unsaid if one.endswith("_weight")
    }
    assert unsaid <= trained, f"fields without a source: {sorted(unsaid - trained)}"
    assert all(said["from"] for said in found["assumptions"].values())
