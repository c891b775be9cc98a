"""Everything wrong with a corpus is reported with file, line and a way out, before any training."""

import numpy as np
import pytest

from tests.train.data.corpora import CHAT, array, lines, texts, tokenizer, undivided


def refused(tmp_path, *sources, **section):
    """The message."""
    with pytest.raises(ValueError) as caught:
        undivided(tmp_path, *sources, **section)
    return str(caught.value)


def test_missing_corpus_is_refused(tmp_path):
    for name in ("missing.txt", "missing", "*.nothing"):
        message = refused(tmp_path, {"kind": "text", "paths": [str(tmp_path / name)]})
        assert f"{name}: no such file, and no folder or pattern with any" in message
    (tmp_path / "empty").mkdir()
    assert "no such file" in refused(tmp_path, {"kind": "text", "paths": [str(tmp_path / "empty")]})
    message = refused(tmp_path, {"kind": "bytes", "path": str(tmp_path / "enwik8")})
    assert "enwik8: no such file; enwik8 is in http://mattmahoney.net/dc/enwik8.zip" in message


def test_empty_corpus_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "a.jsonl").write_text("\n\n")
    assert "a.txt: no text in it" in refused(tmp_path, {"kind": "text", "paths": [str(tmp_path / "a.txt")]})
    assert "a.jsonl: no text in it" in refused(tmp_path, {"kind": "jsonl", "paths": [str(tmp_path / "a.jsonl")]})


def test_file_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("grün".encode("latin-1"))
    message = refused(tmp_path, {"kind": "text", "paths": [str(tmp_path / "a.txt")]})
    assert "a.txt: not UTF-8 (byte 2); convert it" in message
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    assert "a.jsonl, line 2: not UTF-8" in refused(tmp_path, {"kind": "jsonl", "paths": [str(tmp_path / "a.jsonl")]})


@pytest.mark.parametrize(
    ("kind", "line", "reason"),
    [
        ("jsonl", "[1, 2]", "a list, no JSON object"),
        ("jsonl", "{", "not JSON"),
        ("jsonl", '{"body": "x"}', "no 'text' among 'body'; name the right field"),
        ("jsonl", '{"text": 3}', "text is a int; a text is wanted"),
        ("chat", '{"messages": "hello"}', "messages is no list of messages"),
        ("rows", '{"input_ids": "1 2"}', "input_ids is no list of token ids"),
        ("rows", '{"input_ids": [1, 2], "loss_mask": [1]}', "input_ids has 2 entries and loss_mask 1"),
        ("rows", '{"input_ids": [1, 2], "loss_mask": [1, 7]}', "loss_mask is no list of 0 and 1"),
        ("rows", '{"input_ids": [1, 256]}', "token id 256, and the vocabulary has 256"),
        ("rows", '{"input_ids": [1, -1]}', "token id -1, and the vocabulary has 256"),
    ],
)
def test_line_that_is_not_a_document_is_named(tmp_path, kind, line, reason):
    good = {"jsonl": '{"text": "fine"}', "chat": "", "rows": '{"input_ids": [1, 2]}'}[kind]
    (tmp_path / "a.jsonl").write_text(f"{good}\n{line}\n")
    message = refused(tmp_path, {"kind": kind, "paths": [str(tmp_path / "a.jsonl")]})
    assert "a.jsonl, line 2: " in message and reason in message


def test_messages_that_cannot_be_rendered_are_refused(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"messages": [{"role": "user"}]}])
    message = refused(tmp_path, {"kind": "chat", "paths": [path]}, tok=tokenizer(tmp_path / "tok", "{{ messages }}"))
    assert "a.jsonl, line 1: messages[0] has no content" in message
    path = lines(tmp_path / "b.jsonl", [{"messages": CHAT}])
    message = refused(tmp_path, {"kind": "chat", "paths": [path]}, tok=tokenizer(tmp_path / "other"))
    assert "b.jsonl, line 1" in message and "has no chat template" in message
    assert "tokenizer: bytes has no chat template" in refused(tmp_path, {"kind": "chat", "paths": [path]})


def test_corpus_shorter_than_a_row_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("0123456789abcde")
    source = {"kind": "text", "paths": [str(tmp_path / "a.txt")]}
    assert "16 tokens to train on, and a row has 17" in refused(tmp_path, source)
    assert undivided(tmp_path, source, length=15).batches.num_rows == 1


def test_corpus_with_all_tokens_masked_is_refused(tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3] * 9, "loss_mask": [0] * 27}])
    for packing in ("packed", "documents"):
        message = refused(tmp_path, {"kind": "rows", "paths": [path]}, packing=packing)
        assert "none of its 27 tokens is learned; check loss_mask" in message


def test_wrong_token_files_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(9))
    message = refused(tmp_path, {"kind": "tokens", "paths": [str(tmp_path / "a.npy")]})
    assert "a.npy: float64 of shape [9]; integers [N] or [P, T] are wanted" in message
    np.save(tmp_path / "b.npy", np.asarray([{}]), allow_pickle=True)
    assert "b.npy: no array of numbers" in refused(tmp_path, {"kind": "tokens", "paths": [str(tmp_path / "b.npy")]})
    (tmp_path / "c.bin").write_bytes(b"123")
    message = refused(tmp_path, {"kind": "tokens", "paths": [str(tmp_path / "c.bin")]})
    assert "c.bin: 3 bytes are no whole number of uint16 ids" in message
    path = array(tmp_path / "d.npy", [1, 300])
    assert "token id 300, and the vocabulary has 256" in refused(tmp_path, {"kind": "tokens", "paths": [path]})


def test_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path):
    source, tok = texts(tmp_path / "texts"), tokenizer(tmp_path / "tok")
    message = refused(tmp_path, source, tok=tok, vocab_size=tok.size - 1)
    assert f"has {tok.size} tokens and the target {tok.size - 1}: give the target's own" in message
    assert "needs a target of 256 tokens; it has 200" in refused(tmp_path, source, vocab_size=200)
    assert "end_of_text 256: the vocabulary has 256 tokens" in refused(tmp_path, source, end=256)
    message = refused(tmp_path, source, tokenizer="target", vocab_size=256)
    assert "the target has no tokenizer; put tokenizer.json beside it" in message


def test_empty_validation_split_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a text of one file\n" * 9)
    message = refused(tmp_path, {"kind": "text", "paths": [str(tmp_path / "a.txt")]}, validation={"share": 1e-9})
    assert "nothing falls to validation (share 1e-09 by file); give by: document, a source with split" in message
    message = refused(tmp_path, texts(tmp_path / "t", split="validation"))
    assert "everything is held out; give a source to train on" in message


def test_incompatible_sources_are_refused(tmp_path):
    source = texts(tmp_path / "texts")
    message = refused(tmp_path, {**source, "share": 1.0}, source)
    assert "some sources have a share and others none" in message
    (tmp_path / "b").write_bytes(b"123")
    bytes_ = {"kind": "bytes", "path": str(tmp_path / "b"), "train": 3, "validation": 0, "test": 0}
    assert "wants tokenizer: bytes" in refused(tmp_path, bytes_, tok=tokenizer(tmp_path / "tok"))
    bytes_ = {**bytes_, "train": 4}
    assert "3 bytes, and train, validation and test want 4" in refused(tmp_path, bytes_)
