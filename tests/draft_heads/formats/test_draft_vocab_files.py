"""Draft vocabularies of heads that draft by the target's LM head: saved, exported, and given beside a head's files."""

import json

import pytest
import torch

import paceline
from paceline.api.export import export_head, read_head
from paceline.api.head_inspection import describe_head
from paceline.api.loading import load
from paceline.draft_heads.files import HeadError, save_head
from paceline.draft_heads.formats.base import FormatError, HeadFiles
from paceline.models.draft_vocab import FILE, IDS, write_draft_vocab
from paceline.models.fingerprint import fingerprint
from tests.api.checkpoints import pair
from tests.draft_heads.formats.examples import EXAMPLES
from tests.draft_heads.formats.test_every_format import IN_TARGET, PARAMS, PROMPT, drafter_of
from tests.draft_heads.test_prophet import make

NAMES = [name for name, (kind, _) in EXAMPLES.items() if kind in ("eagle", "mtp")]
WANTED = list(range(3, 203))
every_name = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu", enforce_eager=True)


def head_of(name, target, **options):
    kind, others = EXAMPLES[name]
    return make(kind, target.lm, **others, **options)


def save(head, target, folder):
    save_head(head, folder, target_name=target.name, fingerprint=fingerprint(target.lm))
    return folder


@pytest.fixture
def whole(name, target, tmp_path):
    """A head that drafts all tokens."""
    return save(head_of(name, target), target, tmp_path / "whole")


@pytest.fixture
def few(name, target, tmp_path):
    """A head of the same weights that drafts some."""
    head = head_of(name, target, draft_vocab_size=len(WANTED))
    head.load_own_state({**head_of(name, target).own_state(), IDS: torch.tensor(WANTED)})
    return save(head, target, tmp_path / "few")


def drafted(target, drafter):
    [result] = paceline.generate(target, [PROMPT], PARAMS, drafter=drafter, num_draft_tokens=3)
    return result.token_ids, result.stats.drafted, result.stats.accepted


def check_few(head, target):
    assert head.draft_ids.tolist() == WANTED
    rows = (target.lm.embed if target.lm.head is None else target.lm.head).weight[WANTED]
    assert torch.equal(head.drafting_decoder.head.weight, rows)


@pytest.mark.one_in(2)
@every_name
def test_exports_keep_it_beside_files_that_are_those_of_the_whole_head(name, whole, few, target, tmp_path):
    check_few(read_head(few, target=target).head, target)
    for source, written in ((whole, tmp_path / "all"), (few, tmp_path / "some")):
        export_head(source, written, target=target, format=name)
    first, second = HeadFiles(tmp_path / "all"), HeadFiles(tmp_path / "some")
    assert first.config == second.config and first.headers.keys() == second.headers.keys()
    assert all(torch.equal(first.tensor(one), second.tensor(one)) for one in first.headers)
    assert (
        json.loads((tmp_path / "some" / FILE).read_text()) == {IDS: WANTED} and not (tmp_path / "all" / FILE).exists()
    )
    read = read_head(tmp_path / "some", target=target)
    check_few(read.head, target)
    said = describe_head(tmp_path / "some", name="head", target=target)["assumptions"]["draft_vocab_size"]
    assert said == {"value": len(WANTED), "from": FILE}
    export_head(tmp_path / "some", tmp_path / "back", target=target)
    own, back = HeadFiles(few), HeadFiles(tmp_path / "back")
    assert own.headers.keys() == back.headers.keys()
    assert all(torch.equal(own.tensor(one), back.tensor(one)) for one in own.headers)
    found = drafted(target, drafter_of(name, tmp_path / "some"))
    assert found == drafted(target, few) and found[0] == drafted(target, None)[0] and sum(found[1]) > 0


@pytest.mark.one_in(2)
@every_name
def test_a_file_beside_a_head_that_drafts_all_tokens_gives_it_one(name, whole, few, target, tmp_path):
    export_head(whole, tmp_path / "theirs", target=target, format=name)
    for folder in (whole, tmp_path / "theirs"):
        write_draft_vocab(folder, torch.tensor(WANTED))
        check_few(read_head(folder, target=target).head, target)
        drafter = folder if folder == whole else drafter_of(name, folder)
        assert drafted(target, drafter) == drafted(target, few)
    assert describe_head(whole, name="head", target=target)["head"]["draft_vocab_size"] == len(WANTED)


@pytest.mark.parametrize("name", ["eagle"])
def test_files_that_cannot_be_honoured_are_refused(name, whole, few, target, tmp_path):
    export_head(whole, tmp_path / "theirs", target=target, format=name)
    for folder, error in ((few, HeadError), (tmp_path / "theirs", FormatError)):
        (folder / FILE).write_text(json.dumps({IDS: [5, target.lm.vocab_size]}))
        with pytest.raises(error, match=f"{FILE}: .* of 0 to {target.lm.vocab_size - 1}"):
            read_head(folder, target=target)
    write_draft_vocab(few, torch.tensor(WANTED))
    with pytest.raises(HeadError, match="says by itself which tokens it drafts; remove the file"):
        read_head(few, target=target)
    other = save(make("eagle3", target.lm), target, tmp_path / "eagle3")
    export_head(other, tmp_path / "theirs3", target=target, format="eagle3")
    write_draft_vocab(tmp_path / "theirs3", torch.tensor(WANTED))
    with pytest.raises(FormatError, match="says by itself which tokens it drafts; remove the file"):
        read_head(tmp_path / "theirs3", target=target)


@pytest.mark.parametrize("name", ["eagle", "mtp_mimo"])
def test_a_target_whose_lm_head_is_quantized_is_refused(name):
    quantized = load(pair().target, device="cpu", quantization="int8")
    with pytest.raises(ValueError, match="a draft vocabulary: the LM head is quantized; load without"):
        make(EXAMPLES[name][0], quantized.lm, draft_vocab_size=len(WANTED))


@pytest.mark.parametrize(
    ("kind", "options"),
    [("prophet", {"width": 24}), ("linear_prophet", {}), ("early_exit", {"exit_layer": 1, "num_blocks": 1})],
)
def test_a_file_gives_one_to_heads_of_ours_too(kind, options, target, tmp_path):
    folder = save(make(kind, target.lm, **options), target, tmp_path / kind)
    before = drafted(target, folder)
    write_draft_vocab(folder, torch.tensor(WANTED))
    head = read_head(folder, target=target).head
    own = head.decoder.embed if kind == "prophet" else target.lm.head or target.lm.embed
    assert head.draft_ids.tolist() == WANTED and torch.equal(head.drafting_decoder.head.weight, own.weight[WANTED])
    assert drafted(target, folder)[0] == before[0] and sum(drafted(target, folder)[1]) > 0


def test_the_formats_are_those_of_the_targets_layers_and_others():
    assert {*IN_TARGET, "eagle", "speculators_mtp"} == set(NAMES)
