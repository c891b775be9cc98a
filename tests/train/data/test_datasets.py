"""Sources that the package ``datasets`` reads."""

import pytest

from tests.train.data.corpora import CHAT, TEMPLATE, TEXTS, ordered, prepared, tokenizer, undivided

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def source(tmp_path, rows, **fields):
    """A parquet file of ``rows``, and the source that reads it."""
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    return {"kind": "datasets", "name": "parquet", "files": [str(tmp_path / "a.parquet")], **fields}


@pytest.mark.parametrize("streaming", [False, True])
def test_texts_of_a_dataset_are_documents(tmp_path, streaming):
    described = source(tmp_path, [{"text": text} for text in TEXTS], streaming=streaming)
    found = undivided(tmp_path, described, packing="documents", length=400)
    assert [bytes(row.tokens.tolist()).rstrip(b"\0").decode() for row in ordered(found.batches)] == TEXTS
    (record,) = found.manifest.files
    assert (record.name, record.num_documents) == ("datasets/parquet/train", len(TEXTS))


def test_streamed_rows_have_the_tokens_and_hash_of_loaded_ones(tmp_path, monkeypatch):
    validation = {"share": 0.3, "by": "document"}
    described = source(tmp_path, [{"text": text} for text in TEXTS], take=7)
    loaded = prepared(tmp_path, described, validation=validation)
    monkeypatch.setattr("paceline.train.data.encoders.ByteEncoder.encode_many", None)  # the tokens are in the cache
    streamed = prepared(tmp_path, {**described, "streaming": True}, validation=validation)
    assert streamed.manifest == loaded.manifest
    assert sum(record.num_documents for record in loaded.manifest.files) == 7


def test_columns_of_chats_and_rows(tmp_path):
    rows = [{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}]
    found = undivided(tmp_path, source(tmp_path, rows, holds="rows"), packing="documents", length=2)
    assert ordered(found.batches)[0].learned.tolist() == [False, False, True]
    tok = tokenizer(tmp_path / "tok", TEMPLATE)
    described = source(tmp_path, [{"turns": CHAT}], holds="chat", field="turns")
    (row,) = ordered(undivided(tmp_path, described, tok=tok, packing="documents", length=40).batches)
    assert tok.decode([int(t) for t, learned in zip(row.tokens, row.learned, strict=True) if learned]) == "sum \nabc\n"


@pytest.mark.parametrize("streaming", [False, True])
def test_dataset_that_cannot_be_read_is_named(tmp_path, streaming):
    described = {"kind": "datasets", "name": "parquet", "files": ["a.parquet"], "part": "train[:9]"}
    with pytest.raises(ValueError, match=r"data: parquet, train\[:9\]: cannot be loaded .*check the name, the files"):
        prepared(tmp_path, {**described, "streaming": streaming})
    described = source(tmp_path, [{"body": "x"}], streaming=streaming)
    with pytest.raises(ValueError, match="datasets/parquet/train, row 0: no 'text' among 'body'; name the right field"):
        prepared(tmp_path, described)
