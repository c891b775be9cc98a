"""Held-out splits, the manifest, and the cache of tokenised sources."""

import errno
import threading

import numpy as np
import pytest
import torch

from paceline.train.data import Manifest
from paceline.train.data.store import create_once
from tests.train.data.corpora import TEXTS, held_out, lines, ordered, prepared, texts, undivided


@pytest.mark.parametrize("by", ["file", "document"])
def test_held_out_documents_are_never_trained_on(tmp_path, by):
    doubled = [*TEXTS, TEXTS[3], TEXTS[11]]
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in doubled])
    source = {"kind": "jsonl", "paths": [path]} if by == "document" else texts(tmp_path / "t", doubled)
    found = prepared(tmp_path, source, validation={"share": 0.4, "by": by}, packing="documents", length=400)
    assert found.held_out is not None
    train, validation = ({bytes(row.tokens.tolist()) for row in ordered(b)} for b in (found.batches, found.held_out))
    assert not train & validation and len(train | validation) == len(TEXTS)
    assert 2 <= len(validation) <= 18


def test_split_of_a_file_does_not_depend_on_other_files(tmp_path):
    before = prepared(tmp_path, texts(tmp_path / "texts"))
    after = prepared(tmp_path, texts(tmp_path / "texts", [*TEXTS, "more and more text", "and still more"]))
    assert held_out(before) <= held_out(after) and held_out(before)


def test_same_file_in_both_splits_is_refused_by_name(tmp_path):
    sources = texts(tmp_path / "one", split="train"), texts(tmp_path / "other", ["new", TEXTS[5]], split="validation")
    with pytest.raises(ValueError, match=r"one/05.txt \(train\) and .*other/01.txt \(validation\) are the same file"):
        prepared(tmp_path, *sources)


def test_manifest_round_trips_and_names_changes(tmp_path):
    source = texts(tmp_path / "texts")
    found = prepared(tmp_path, source).manifest
    read = Manifest.from_json(found.write(tmp_path).read_text(encoding="utf-8"))
    assert read == found
    found.check_same(read)
    with pytest.raises(ValueError, match="began with length 16, and now has 8"):
        prepared(tmp_path, source, length=8).manifest.check_same(read)
    (tmp_path / "texts" / "03.txt").write_text("another text")
    with pytest.raises(ValueError, match=r"03.txt is not what .*03.txt was when the run began"):
        prepared(tmp_path, source).manifest.check_same(read)
    (tmp_path / "texts" / "03.txt").write_text(TEXTS[3], encoding="utf-8")
    (tmp_path / "texts" / "23.txt").unlink()
    with pytest.raises(ValueError, match=r"23.txt, which the run began with, is gone"):
        prepared(tmp_path, source).manifest.check_same(read)


def test_manifest_counts_match_the_rows(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3, 4, 5], "loss_mask": [1, 0, 1, 0, 1]}] * 7)
    found = undivided(tmp_path, {"kind": "rows", "paths": [path]}, packing="documents", length=4)
    (record,) = found.manifest.files
    assert (record.num_documents, record.num_tokens, record.num_learned) == (7, 35, 14)
    assert record.num_bytes == (tmp_path / "a.jsonl").stat().st_size


def test_corpus_is_tokenised_once_until_it_changes(tmp_path, monkeypatch):
    source = texts(tmp_path / "texts")
    first = prepared(tmp_path, source)
    calls = []
    encode = "paceline.train.data.encoders.ByteEncoder.encode_many"
    monkeypatch.setattr(encode, lambda self, texts: calls.append(texts) or [np.zeros(9, np.uint8)] * len(texts))
    again = prepared(tmp_path, source, length=8, seed=4)
    assert not calls and again.manifest.files == first.manifest.files
    prepared(tmp_path, source, end=10)
    assert calls, "another end of text gives other tokens"


def test_interrupted_tokenisation_leaves_no_cache_entry(tmp_path, monkeypatch):
    source = texts(tmp_path / "texts")
    whole = prepared(tmp_path / "other", source)
    with monkeypatch.context() as patch:
        patch.setattr(
            "paceline.train.data.store.TokenWriter.finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            prepared(tmp_path, source)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    (tmp_path / "cache" / "key.part-1234").mkdir()  # of a killed process
    with create_once(tmp_path / "cache" / "key") as part:
        assert part is not None and not (tmp_path / "cache" / "key.part-1234").exists()
    assert torch.equal(
        prepared(tmp_path, source).batches.batch(0, range(4)).tokens, whole.batches.batch(0, range(4)).tokens
    )


def test_second_process_waits_for_the_first(tmp_path):
    order = []

    def second():
        with create_once(tmp_path / "key") as part:
            order.append(("second", part))

    with create_once(tmp_path / "key") as part:
        assert part is not None
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append(("first", None))
        (part / "file").write_text("whole")
    thread.join(10)
    assert order == [("first", None), ("second", None)] and (tmp_path / "key" / "file").exists()


def test_full_disk_names_the_folder_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("paceline.train.data.store.TokenWriter.put", full)
    with pytest.raises(
        OSError, match=r"cannot write .*cache: No space left on device; make room there, or give another"
    ):
        prepared(tmp_path, texts(tmp_path / "texts"))
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
