"""Every kind of source gives its documents with the right loss masks."""

import json
import sys

import numpy as np
import pytest

from paceline.train.data import DataConfig
from paceline.train.data.manifest import Split
from tests.train.data.corpora import (
    CHAT,
    MARKED,
    TEMPLATE,
    TEXTS,
    array,
    epoch,
    files,
    held_out,
    lines,
    ordered,
    prepared,
    texts,
    tokenizer,
    undivided,
)


def text_of(rows):
    """The stream of packed rows that overlap by a token, as bytes."""
    return bytes([int(rows[0].tokens[0]), *(int(token) for row in rows for token in row.tokens[1:])])


def test_texts_are_packed_in_file_order_each_with_end_of_text(tmp_path):
    found = undivided(tmp_path, texts(tmp_path / "texts", split="train"))
    stream = b"".join(text.encode() + b"\0" for text in TEXTS)
    assert stream.startswith(text_of(ordered(found.batches)))
    assert len(stream) - len(text_of(ordered(found.batches))) < 16
    assert found.held_out is None


@pytest.mark.parametrize("pattern", ["texts", "texts/*.txt", "**/*.txt"])
def test_folders_and_globs_find_the_same_files(tmp_path, pattern):
    files(tmp_path / "texts")
    found = prepared(tmp_path, {"kind": "text", "paths": [str(tmp_path / pattern)]})
    assert len(found.manifest.files) == len(TEXTS)


def test_jsonl_reads_the_named_field(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"body": text, "other": 1} for text in TEXTS])
    source = {"kind": "jsonl", "paths": [path], "field": "body"}
    found = undivided(tmp_path, source, packing="documents", length=400)
    assert [bytes(row.tokens.tolist()).rstrip(b"\0").decode() for row in ordered(found.batches)] == TEXTS


@pytest.mark.parametrize("template", [TEMPLATE, MARKED], ids=["turns found", "marked"])
def test_only_the_assistants_tokens_of_a_chat_are_learned(tmp_path, template):
    tok = tokenizer(tmp_path / "tok", template)
    path = lines(tmp_path / "a.jsonl", [{"messages": CHAT}])
    found = undivided(tmp_path, {"kind": "chat", "paths": [path]}, tok=tok, packing="documents", length=40)
    (row,) = ordered(found.batches)
    whole = tok.chat(CHAT, add_generation_prompt=False)
    assert row.tokens[: len(whole)].tolist() == whole and not row.learned[len(whole) :].any()
    learned = tok.decode([int(t) for t, is_learned in zip(row.tokens, row.learned, strict=True) if is_learned])
    assert learned == "sum \nabc\n"


def test_marked_and_located_assistant_turns_agree(tmp_path):
    one, other = (tokenizer(tmp_path / name, t) for name, t in (("one", TEMPLATE), ("other", MARKED)))
    assert one.chat_turns(CHAT) == other.chat_turns(CHAT)
    assert sum(one.chat_turns(CHAT)[1]) > 4


@pytest.mark.parametrize(
    ("template", "messages", "reason"),
    [
        (
            "{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}",
            CHAT,
            "renders messages 0 to 1 differently",
        ),
        (TEMPLATE.replace("<|assistant|>{% endif", "sum{% endif"), CHAT, "opens message 1 differently"),
        (TEMPLATE, CHAT[1:], "begins with the assistant"),
    ],
)
def test_chat_whose_assistant_turns_cannot_be_located_is_refused(tmp_path, template, messages, reason):
    tok = tokenizer(tmp_path / "tok", template)
    path = lines(tmp_path / "a.jsonl", [{"messages": CHAT[:0] + messages}])
    with pytest.raises(ValueError, match=f"a.jsonl, line 1: .*{reason}"):
        prepared(tmp_path, {"kind": "chat", "paths": [path]}, tok=tok)


def test_rows_preserve_their_loss_mask(tmp_path):
    masks = [[0, 0, 1, 1], [1, 1, 1], [0, 1]]
    rows = [{"input_ids": list(range(1, len(mask) + 1)), "loss_mask": mask} for mask in masks]
    path = lines(tmp_path / "a.jsonl", [*rows, {"left_out": "loops"}, {"input_ids": [9, 9]}])
    found = undivided(tmp_path, {"kind": "rows", "paths": [path]}, packing="documents", length=3)
    learned = [row.learned.astype(int).tolist() for row in ordered(found.batches)]
    assert learned == [[0, 0, 1, 1], [0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 0, 0]], "nothing predicts a first token"


def test_token_files_split_at_end_of_text_and_arrays_by_row(tmp_path):
    flat, whole = array(tmp_path / "a.npy", [1, 2, 0, 3, 0, 4, 5]), array(tmp_path / "b.npy", [[1, 2, 3], [4, 5, 6]])
    raw = tmp_path / "c.bin"
    np.asarray([7, 8, 0, 9, 10], dtype=np.int32).tofile(raw)
    sources = {"kind": "tokens", "paths": [flat, whole]}, {"kind": "tokens", "paths": [str(raw)], "dtype": "int32"}
    found = undivided(tmp_path, *sources, packing="documents", length=3)
    documents = [record.num_documents for record in found.manifest.files]
    assert documents == [3, 2, 2]
    rows = sorted(row.tokens[: 1 + int(row.learned.sum())].tolist() for row in epoch(found.batches))
    assert rows == sorted([[1, 2, 0], [3, 0], [4, 5], [1, 2, 3], [4, 5, 6], [7, 8, 0], [9, 10]])


def test_byte_source_is_split_at_fixed_bytes(tmp_path):
    path = tmp_path / "enwik"
    path.write_bytes(bytes(range(256)) * 4)
    source = {"kind": "bytes", "path": str(path), "train": 900, "validation": 60, "test": 64}
    found = prepared(tmp_path, source, end=None)
    whole = path.read_bytes()
    assert whole[:900].startswith(text_of(ordered(found.batches)))
    assert found.held_out is not None and whole[900:960].startswith(text_of(ordered(found.held_out)))
    assert found.batches.batch(0, range(4)).segment is None, "there is only one text"
    assert [record.split for record in found.manifest.files] == ["train", "validation", "test"]


def test_standard_library_holds_out_its_fixed_list(tmp_path):
    found = prepared(tmp_path, {"kind": "standard_library"}, length=128)
    assert "argparse.py" in held_out(found) and "abc.py" not in held_out(found)
    assert found.held_out is not None and found.batches.num_rows > 10 * found.held_out.num_rows > 0


def test_missing_datasets_package_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"the package datasets is missing; pip install 'paceline\[datasets\]'"):
        prepared(tmp_path, {"kind": "datasets", "name": "owner/set"})


def test_prompts_are_prefixes_of_held_out_documents(tmp_path):
    found = prepared(tmp_path, texts(tmp_path / "texts"), packing="documents", length=400)
    assert found.held_out is not None
    prefixes = [row.tokens.tolist() for row in ordered(found.held_out)]
    prompts = found.prompts(3, 8, seed=1)
    assert prompts.shape == (3, 8) and len(np.unique(prompts, axis=0)) == len(prompts)
    assert prompts.tolist() != found.prompts(3, 8, seed=2).tolist()
    assert all(any(row[:8] == prompt for row in prefixes) for prompt in prompts.tolist())
    with pytest.raises(ValueError, match="no document of the split validation has a prompt of 900 tokens"):
        found.prompts(1, 900)


def test_prompt_of_a_chat_ends_before_the_assistants_turn(tmp_path):
    tok = tokenizer(tmp_path / "tok", TEMPLATE)
    path = lines(tmp_path / "a.jsonl", [{"messages": CHAT}])
    found = undivided(tmp_path, {"kind": "chat", "paths": [path]}, tok=tok, packing="documents", length=40)
    opened = tok.chat(CHAT[:1])
    assert found.prompts(3, 3, split=Split.TRAIN).tolist() == [opened[-3:]]
    assert found.prompts(3, 9, split=Split.TRAIN).tolist() == [tok.chat(CHAT)[:9]], "there are not so many before it"


def test_wrong_fields_of_the_section_are_refused():
    for section in (
        {"sources": []},
        {"sources": [{"kind": "txt"}]},
        {"sources": [{"kind": "text", "paths": ["a"], "x": 1}]},
    ):
        with pytest.raises(ValueError):
            DataConfig.model_validate(section)
    config = DataConfig.model_validate({"sources": [{"kind": "text", "paths": ["a"]}]})
    assert DataConfig.model_validate(json.loads(config.model_dump_json())) == config
