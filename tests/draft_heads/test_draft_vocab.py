"""Draft vocabularies: chosen by frequency, checked, saved with the head, and renormalised in the loss."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.registry import Registry
from paceline.draft_heads import files
from paceline.draft_heads.draft_vocab import DraftVocab, most_frequent
from paceline.draft_heads.layers import load_own_tensors, own_tensors
from paceline.models.fingerprint import fingerprint
from tests import tiny
from tests.train.heads import LastConfig, LastHead

IDS = [3, 7, 8, 60]


class FewConfig(LastConfig):
    draft_vocab_size: int | None = None


class FewHead(LastHead):
    """Saves a draft vocabulary beside its table."""

    kind = "few"
    Config = FewConfig

    @classmethod
    def make(cls, config, target, *, generator):
        head = cls(config, target.vocab_size)
        head.draft_vocab = DraftVocab.make(config.draft_vocab_size, target)
        head.table.weight.data = torch.randn(head.table.weight.shape, generator=generator).to(target.dtype)
        return head

    def own_state(self):
        return own_tensors({"table": self.table}, self.draft_vocab)

    def load_own_state(self, state):
        load_own_tensors({"table": self.table}, state, self.draft_vocab)


def make(size=4):
    return FewHead.make(FewConfig(draft_vocab_size=size), tiny.target()[1], generator=torch.Generator().manual_seed(0))


def test_most_frequent_ids_ascend_and_ties_go_to_the_lower_id():
    assert most_frequent(torch.tensor([5, 0, 9, 5, 5, 1]), 3).tolist() == [0, 2, 3]
    assert most_frequent(torch.zeros(6, dtype=torch.int64), 2).tolist() == [0, 1]


def test_a_head_has_a_map_of_its_ids_or_none():
    assert make(None).vocab_map is None and make(None).draft_ids is None
    head = make()
    assert head.draft_ids.tolist() == [0, 1, 2, 3]
    head.draft_vocab.set_ids(torch.tensor(IDS))
    logits = head.vocab_map.target_logits(torch.arange(4.0)[None])
    assert [logits[0, one].item() for one in IDS] == [0, 1, 2, 3]
    assert logits.isneginf().sum() == tiny.VOCAB - 4 and logits.shape == (1, tiny.VOCAB)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([3, 7, 8], "draft_ids: 3, and the head has 4"),
        ([3, 8, 7, 60], "ascending"),
        ([3, 7, 8, 61], "0 to 60"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids, said):
    with pytest.raises(ValueError, match=said):
        make().draft_vocab.set_ids(torch.tensor(ids))


@pytest.mark.parametrize("size", [0, 62])
def test_sizes_beyond_the_targets_are_refused(size):
    with pytest.raises(ValueError, match=f"draft_vocab_size={size}: the target has 61 tokens"):
        make(size)


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(files, "DRAFT_HEADS", Registry("head", {"few": f"{__name__}:FewHead"}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_ids_are_saved_as_integers(known, tmp_path, dtype):
    target = tiny.target()[1]
    head = make()
    head.draft_vocab.set_ids(torch.tensor(IDS))
    files.save_head(head, tmp_path, target_name="it", fingerprint=fingerprint(target))
    if dtype is not torch.float64:
        target = tiny.native(tiny.llama()).to(dtype)
    assert load_file(tmp_path / files.WEIGHTS)["draft_ids"].tolist() == IDS
    again = files.load_head(tmp_path, target)
    assert again.draft_ids.tolist() == IDS and again.table.weight.dtype == dtype


def test_saved_ids_that_cannot_be_are_refused(known, tmp_path):
    target, file = tiny.target()[1], tmp_path / files.WEIGHTS
    files.save_head(make(), tmp_path, target_name="it", fingerprint=fingerprint(target))
    with files.safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    save_file({**load_file(file), "draft_ids": torch.tensor([0, 1, 2, 99])}, file, metadata=metadata)
    with pytest.raises(files.HeadError, match="give ascending ids, at least one, of 0 to 60"):
        files.load_head(tmp_path, target)
