"""``paceline datastore``: what is built of which files, all or nothing, and what is said of it."""

import json
import re
import sys

import numpy as np
import pytest

from paceline.api import load
from paceline.cli import run
from paceline.drafters.datastore import PLACES, TOKENS, Datastore
from paceline.train.data import datastore
from tests.api.checkpoints import EOS, other_vocabulary, pair, without_tokenizer
from tests.cli.files import generate_file, lines_of, write
from tests.train.data.corpora import files

TEXTS = [f"def f{number}(first, second):\n    return first + {number} * second\n" for number in range(9)]


def build(output, *sources, model=None):
    words = ["datastore", "build", *sources, "--model", model or pair().target, "--output", output]
    return run([str(word) for word in words])


def inspect(capsys, *words):
    code = run(["datastore", "inspect", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def documents(store):
    """The tokens of every document."""
    found = [[]]
    for token in list(Datastore(store).tokens)[1:]:
        if token >= 0:
            found[-1].append(token)
        else:
            found.append([])
    return found[:-1]


def encoded(texts):
    tokenizer = load(pair().target).tokenizer
    return [[*tokenizer.encode(text), EOS] for text in texts]


def test_texts_become_tokens_of_the_model_each_ended(tmp_path, capsys):
    assert build(tmp_path / "store", files(tmp_path / "texts", TEXTS)) == 0
    assert documents(tmp_path / "store") == encoded(TEXTS)
    said = capsys.readouterr().out
    assert f"{sum(map(len, encoded(TEXTS))):,} tokens of 9 documents" in said
    assert f"--drafter retrieval:{tmp_path / 'store'}" in said
    code, facts = inspect(capsys, tmp_path / "store", "--model", pair().target, "--verify")
    assert code == 0 and facts["documents"] == 9 and facts["fits"] is True and facts["damaged"] == []
    assert facts["tokenizer"] == load(pair().target).tokenizer.digest
    assert {path.name for path in tmp_path.iterdir()} == {"store", "texts"}, "nothing is left beside it"


def test_every_kind_of_file_is_read(tmp_path):
    write(tmp_path / "a.jsonl", [json.dumps({"id": 1, "text": TEXTS[0]}), json.dumps({"id": 2, "text": TEXTS[1]})])
    write(tmp_path / "b.jsonl", [json.dumps({"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]})])
    np.save(tmp_path / "c.npy", np.asarray([[1, 2, 3], [4, 5, 6]]))
    (tmp_path / "d.py").write_text(TEXTS[2])
    assert build(tmp_path / "store", *(tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.npy", "d.py"))) == 0
    found = documents(tmp_path / "store")
    assert sorted(found) == sorted([*encoded(TEXTS[:3]), [5, 6, 7], [1, 2, 3], [4, 5, 6]])
    write(tmp_path / "e.jsonl", [json.dumps({"content": TEXTS[3]})])
    assert build(tmp_path / "other", tmp_path / "e.jsonl", "--field", "content") == 0
    assert documents(tmp_path / "other") == encoded(TEXTS[3:4])


def test_datasets_of_the_hub_are_read_by_name(tmp_path, monkeypatch):
    class Package:
        asked = None

        @classmethod
        def load_dataset(cls, *words, **options):
            cls.asked = (words, options)
            return [{"code": text} for text in TEXTS]

    monkeypatch.setattr("paceline.train.data.sources.hub_datasets.import_datasets", lambda what: Package)
    options = ("--field", "code", "--split", "test", "--subset", "small", "--take", "2")
    assert build(tmp_path / "store", "owner/name", *options) == 0
    assert documents(tmp_path / "store") == encoded(TEXTS[:2])
    assert Package.asked[0] == ("owner/name", "small") and Package.asked[1]["split"] == "test"


def test_outputs_are_those_of_plain_decoding_and_a_text_of_the_store_is_drafted_whole(tmp_path, capsys):
    prompts = ["def f(first,", "import"]
    given = write(tmp_path / "prompts.txt", prompts)
    assert generate_file(given, tmp_path / "plain.jsonl", max_tokens=40) == 0
    outputs = [line["samples"][0]["tokens"] for line in lines_of(tmp_path / "plain.jsonl")]
    tokenizer = load(pair().target).tokenizer
    rows = [
        json.dumps({"input_ids": tokenizer.encode(prompt) + output})
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    assert build(tmp_path / "store", write(tmp_path / "rows.jsonl", rows)) == 0
    options = ("--drafter", f"retrieval:{tmp_path / 'store'}", "--num-draft-tokens", "4", "--stats")
    capsys.readouterr()
    assert generate_file(given, tmp_path / "drafted.jsonl", *options, max_tokens=40) == 0
    assert [line["samples"][0]["tokens"] for line in lines_of(tmp_path / "drafted.jsonl")] == outputs
    said = capsys.readouterr().err
    assert re.search(r"accepted +100% of the drafted tokens: (\d+) of \1", said), said


def test_what_is_there_is_not_overwritten_unasked(tmp_path, capsys):
    corpus, store = files(tmp_path / "texts", TEXTS), tmp_path / "store"
    assert build(store, corpus) == 0
    assert build(store, corpus) == 2
    assert "store exists: give --overwrite, or another directory" in capsys.readouterr().err
    (tmp_path / "one.txt").write_text(TEXTS[0])
    before = Datastore(store)
    assert build(store, tmp_path / "one.txt", "--overwrite") == 0
    assert documents(store) == encoded(TEXTS[:1]) and before.tokens[1] == encoded(TEXTS)[0][0]
    assert build(corpus, tmp_path / "one.txt", "--overwrite") == 2
    assert "is no datastore, so it is not overwritten" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"store", "texts", "one.txt"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_build_that_does_not_end_leaves_what_was_there(tmp_path, monkeypatch, error, capsys):
    corpus, store = files(tmp_path / "texts", TEXTS), tmp_path / "store"
    (tmp_path / "one.txt").write_text(TEXTS[0])
    assert build(store, tmp_path / "one.txt") == 0

    def fail(*_, **__):
        raise error("no room")

    monkeypatch.setattr(datastore, "sort_places", fail)
    assert build(store, corpus, "--overwrite") == (130 if error is KeyboardInterrupt else 2)
    assert documents(store) == encoded(TEXTS[:1])
    assert {path.name for path in tmp_path.iterdir()} == {"store", "texts", "one.txt"}


def test_without_the_library_a_build_says_what_to_install_and_opening_works(tmp_path, monkeypatch, capsys):
    corpus = files(tmp_path / "texts", TEXTS)
    assert build(tmp_path / "store", corpus) == 0
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    assert build(tmp_path / "other", corpus) == 2
    assert "the package pydivsufsort, which is missing: pip install 'paceline[retrieval]'" in capsys.readouterr().err
    assert inspect(capsys, tmp_path / "store", "--verify")[0] == 0


def test_other_models_and_damage_are_noticed(tmp_path, capsys):
    store, other = tmp_path / "store", other_vocabulary(tmp_path / "model")
    assert build(store, files(tmp_path / "texts", TEXTS)) == 0
    capsys.readouterr()
    code, facts = inspect(capsys, store, "--model", other)
    assert code == 1 and facts["fits"] is False and "is of another tokenizer" in facts["reason"]
    for name in (TOKENS, PLACES):
        data = (store / name).read_bytes()
        (store / name).write_bytes(data[:8] + bytes([data[8] ^ 1]) + data[9:])
        code, facts = inspect(capsys, store, "--verify")
        assert code == 1 and facts["damaged"] == [name]
        (store / name).write_bytes(data)
    assert run(["datastore", "inspect", str(store), "--verify"]) == 0
    assert "nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere.txt"], "nowhere.txt: no such file"),
        (["owner/name", "a.txt"], "owner/name with other files"),
        (["a.txt", "--take", "3"], "--take is of a dataset, and files are given: leave it out"),
        (["a.txt", "--split", "test"], "--split is of a dataset"),
        (["a.txt", "--field", "x"], "--field x: none of the files is a .jsonl file"),
        (["b.jsonl"], "b.jsonl, line 1: none of text, messages, input_ids among 'code'; say which holds the text"),
        (["c.jsonl"], "c.jsonl, line 1: not JSON"),
        (["empty.txt"], "there are no tokens in these texts"),
    ],
)
def test_bad_input_is_one_line_with_the_way_out(tmp_path, monkeypatch, capsys, words, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    write(tmp_path / "b.jsonl", ['{"code": "x"}'])
    write(tmp_path / "c.jsonl", ["{"])
    (tmp_path / "empty.txt").write_text("")
    assert build("store", *words) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1 and said.startswith("paceline: ")
    assert not (tmp_path / "store").exists()


def test_a_model_without_a_tokenizer_takes_token_ids_alone(tmp_path, capsys):
    model = without_tokenizer(tmp_path / "model")
    np.save(tmp_path / "ids.npy", np.asarray([1, 2, 3]))
    assert build(tmp_path / "store", tmp_path / "ids.npy", model=model) == 0
    assert Datastore(tmp_path / "store").header.vocabulary is None
    assert build(tmp_path / "other", files(tmp_path / "texts", TEXTS), model=model) == 2
    assert "the target has no tokenizer" in capsys.readouterr().err
