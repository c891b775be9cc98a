"""Precomputed hidden states match the target's, in the file format of speculators."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.train.data.sources.feature_extraction import Chunk, check_taps, compute_hidden_states, prepare_folder
from paceline.train.data.sources.features import sample_path, save_rows
from tests import tiny
from tests.train.data.corpora import ordered, prepared

TAPS = (1, 2, 3)
LENGTHS = (9, 14, 1 + 4, 11, 20)


def pieces():
    generator = np.random.default_rng(0)
    found = []
    for size in LENGTHS:
        learned = generator.random(size) < 0.7
        learned[0] = False
        found.append(Chunk(tokens=generator.integers(0, tiny.VOCAB, size), learned=learned))
    return found


def written(folder, lm, numbers=None):
    """The folder that ``paceline data features`` writes."""
    missing = prepare_folder(folder, pieces(), taps=TAPS, identity={"model": "tiny"})
    compute_hidden_states(
        lm, pieces(), missing if numbers is None else numbers, taps=TAPS, folder=folder, batch_size=2, done=int
    )
    return folder


def read(tmp_path, folder, *, length=7, taps=None, **fields):
    """The data of ``folder``, of which nothing is held out."""
    source = {"kind": "features", "path": str(folder), "taps": taps}
    options = {"validation": {"share": 0}, "vocab_size": tiny.VOCAB, "end": None, "tokenizer": "target", **fields}
    return prepared(tmp_path, source, length=length, **options)


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "cache", tiny.target()[1])


@pytest.mark.parametrize("packing", ["packed", "documents"])
def test_batch_has_the_targets_hidden_states_at_its_tokens(tmp_path, folder, packing):
    lm = tiny.target()[1]
    found = read(tmp_path, folder, packing=packing)
    batch = found.batches.batch(0, range(found.batches.rows))
    assert batch.hidden is not None and set(batch.hidden) == set(TAPS)
    stream = {}  # the last four tokens -> hidden states, of every document
    for piece in pieces():
        hidden = lm.causal(torch.from_numpy(piece.tokens)[None], taps=TAPS).hidden
        for at in range(len(piece.tokens)):
            stream[tuple(piece.tokens[: at + 1].tolist())[-4:]] = {tap: hidden[tap][0, at] for tap in TAPS}
    num_checked = 0
    for row in range(found.batches.rows):
        tokens, segment = batch.tokens[row].tolist(), None if batch.segment is None else batch.segment[row].tolist()
        for at in range(3, 7):
            before = tuple(tokens[at - 3 : at + 1])
            if (segment is None or segment[at - 3] == segment[at]) and before in stream:
                for tap in TAPS:
                    expected = stream[before][tap].to(torch.bfloat16)
                    assert torch.allclose(batch.hidden[tap][row, at].float(), expected.float(), atol=1e-2)
                num_checked += 1
    assert num_checked > 8


def test_row_of_several_documents_has_hidden_states_of_each(tmp_path, folder):
    row = ordered(read(tmp_path, folder, length=30).batches)[0]
    files = [load_file(sample_path(folder, number)) for number in range(len(LENGTHS))]
    whole = torch.cat([file["hidden_states"] for file in files])[:30]
    assert row.hidden is not None
    assert all(torch.equal(row.hidden[tap], whole[:, layer]) for layer, tap in enumerate(TAPS))
    assert row.tokens[:30].tolist() == torch.cat([file["token_ids"] for file in files])[:30].tolist()


def test_files_have_the_layout_of_speculators(folder):
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for number, (row, piece) in enumerate(zip(rows, pieces(), strict=True)):
        file = load_file(folder / "hidden_states" / f"hs_{number}.safetensors")
        assert set(file) == {"token_ids", "hidden_states"} and file["token_ids"].dtype == torch.int64
        assert file["token_ids"].tolist() == row["input_ids"] == piece.tokens.tolist()
        assert file["hidden_states"].shape == (len(piece.tokens), len(TAPS), 32)
        assert file["hidden_states"].dtype == torch.bfloat16
        assert row["loss_mask"] == piece.learned.astype(int).tolist()


def test_rows_saved_as_a_dataset_are_those_of_the_lines(tmp_path, folder, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    lines = read(tmp_path, folder)
    assert save_rows(folder)
    (folder / "rows.jsonl").unlink()  # as speculators leaves it
    saved = read(tmp_path, folder)
    assert saved.manifest.files == lines.manifest.files
    assert torch.equal(saved.batches.batch(0, range(4)).hidden[3], lines.batches.batch(0, range(4)).hidden[3])


def test_only_missing_rows_are_computed_again(tmp_path):
    lm = tiny.target()[1]
    folder = written(tmp_path / "cache", lm, numbers=[0, 3])
    before = sample_path(folder, 3).stat().st_mtime_ns
    assert prepare_folder(folder, pieces(), taps=TAPS, identity={"model": "tiny"}) == [1, 2, 4]
    written(folder, lm)
    assert prepare_folder(folder, pieces(), taps=TAPS, identity={"model": "tiny"}) == []
    assert sample_path(folder, 3).stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="holds hidden states with num_rows 5, and now it is 4"):
        prepare_folder(folder, pieces()[:4], taps=TAPS, identity={"model": "tiny"})
    (folder / "rows.jsonl").unlink()  # killed before it was there
    assert (
        prepare_folder(folder, pieces(), taps=TAPS, identity={"model": "tiny"}) == []
        and (folder / "rows.jsonl").exists()
    )
    with pytest.raises(ValueError, match="hidden states with model tiny, and now it is other: give another --output"):
        prepare_folder(folder, pieces(), taps=TAPS, identity={"model": "other"})
    with pytest.raises(ValueError, match=r"is not empty, and holds no features.json"):
        prepare_folder(tmp_path, pieces(), taps=TAPS, identity={})


def test_rows_without_hidden_states_are_left_out(tmp_path):
    folder = written(tmp_path / "cache", tiny.target()[1], numbers=[1, 4])
    found = read(tmp_path, folder, length=30, packing="documents")
    assert [len(row.tokens[: 1 + int(np.flatnonzero(row.tokens)[-1])]) for row in ordered(found.batches)] == [14, 20]


def test_files_without_metadata_require_taps(tmp_path, folder):
    (folder / "features.json").unlink()
    with pytest.raises(ValueError, match=r"no features.json says which layers it holds; give taps"):
        read(tmp_path, folder)
    with pytest.raises(ValueError, match="its files hold 3 layers, and taps names 2"):
        read(tmp_path, folder, taps=[1, 3])
    hidden = ordered(read(tmp_path, folder, taps=[0, 2, 3]).batches)[0].hidden
    assert hidden is not None and set(hidden) == {0, 2, 3}


def test_broken_or_mismatched_file_is_named(tmp_path, folder):
    found = read(tmp_path, folder)
    path = sample_path(folder, 0)
    file = load_file(path)
    save_file({**file, "token_ids": file["token_ids"] + 1}, path)
    with pytest.raises(ValueError, match=r"hs_0.safetensors: hidden states of other tokens than its row has"):
        ordered(found.batches)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"hs_0.safetensors: cannot be read"):
        ordered(found.batches)


def test_a_folder_without_hidden_states_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rows.jsonl").write_text('{"input_ids": [1, 2]}\n')
    with pytest.raises(ValueError, match=r"no hidden_states/hs_0.safetensors or any other; compute them first"):
        read(tmp_path, tmp_path / "a")
    with pytest.raises(ValueError, match="no such folder; paceline data features writes one"):
        read(tmp_path, tmp_path / "b")


def test_taps_end_with_the_last_layer():
    lm = tiny.target()[1]
    assert check_taps([2, 1, 2], lm) == (1, 2, 3) and check_taps([3, 0], lm) == (0, 3)
    with pytest.raises(ValueError, match="tap 4: the target has 3 layers"):
        check_taps([4], lm)
