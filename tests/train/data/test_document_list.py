"""Every document that a run reads is listed with its file, hash, tokens and use."""

import json

import numpy as np

from paceline.train.data.document_list import write_documents
from paceline.train.data.tokenise import hash_tokens
from tests.train.data.corpora import TEXTS, lines, prepared, texts


def listed(folder, data):
    return [json.loads(line) for line in write_documents(folder, data.sources).read_text().splitlines()]


def test_every_document_has_its_file_hash_tokens_and_split(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"text": f"row {text}"} for text in TEXTS])
    own = texts(tmp_path / "t")
    data = prepared(tmp_path, own, {"kind": "jsonl", "paths": [path]}, validation={"share": 0.4, "by": "document"})
    found = listed(tmp_path, data)
    assert len(found) == 2 * len(TEXTS) == len({line["sha256"] for line in found})
    assert {line["split"] for line in found} == {"train", "validation"}
    hashes = {hash_tokens(np.append(np.frombuffer(text.encode(), np.uint8), 0)): at for at, text in enumerate(TEXTS)}
    of_files = [line for line in found if line["sha256"] in hashes]
    assert len(of_files) == len(TEXTS)
    for line in of_files:
        at = hashes[line["sha256"]]
        assert line["file"].endswith(f"t/{at:02}.txt") and line["document"] == 1
        assert line["num_tokens"] == len(TEXTS[at].encode()) + 1
    for record in data.manifest.files:
        own_lines = [line for line in found if (line["file"], line["split"]) == (record.name, record.split)]
        assert [line["document"] for line in own_lines] == list(range(1, record.num_documents + 1))
        assert sum(line["num_tokens"] for line in own_lines) == record.num_tokens
