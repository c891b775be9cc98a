"""The standard library as a corpus, its tokenizer, and random crops."""

import hashlib

import numpy as np
import pytest
import torch

from demo.recipes.corpus import END_OF_TEXT, encode, train_tokenizer
from demo.recipes.crops import Crops, Stages
from paceline.train.batches import TrainBatch
from paceline.train.data import HELD_OUT, LibraryFile, standard_library
from paceline.train.data.manifest import Split

TEXTS = ["def f(x):\n    return x + 1\n", "für 木 🌲 \x00\x7f\r\n\ttabs", "", "    " * 20 + "deep", "a" * 500]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3, 300)


@pytest.fixture(scope="module")
def library():
    return standard_library()


@pytest.mark.parametrize("text", [*TEXTS, "never seen: ключ ß \u2028 \U0001f40d"])
def test_any_text_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_end_of_text_is_id_0_and_ends_every_document(tokenizer):
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    documents = [LibraryFile(str(index), text, False) for index, text in enumerate(TEXTS)]
    tokens = encode(tokenizer, documents)
    assert tokens.dtype == np.uint16
    assert np.count_nonzero(tokens == 0) == len(TEXTS) and tokens[-1] == 0
    ends = np.flatnonzero(tokens == 0)
    pieces = np.split(tokens, ends + 1)[:-1]
    assert [tokenizer.decode(piece[:-1].tolist()) for piece in pieces] == TEXTS


def test_the_tokenizer_is_a_function_of_its_texts(tokenizer):
    assert train_tokenizer(TEXTS * 3, 300).to_str() == tokenizer.to_str()
    assert tokenizer.get_vocab_size() == 300


def test_held_out_files_are_not_in_the_training_split(library):
    files = [file.describe() for file in library]
    held_out, train = ([file for file in files if file.split == split] for split in (Split.VALIDATION, Split.TRAIN))
    assert held_out and train
    assert not {file.sha256 for file in held_out} & {file.sha256 for file in train}
    assert {file.name for file in held_out} <= HELD_OUT and not {file.name for file in train} & HELD_OUT


def test_most_held_out_names_exist_in_this_python(library):
    # Modules move between versions of Python; a list that no longer matches would hold nothing out.
    found = {document.name for document in library if document.held_out}
    assert len(found) >= len(HELD_OUT) - 2


def test_every_file_has_its_own_name_and_hash(library):
    names = [file.name for file in library]
    assert names == list(dict.fromkeys(names))
    for file in library[:5] + library[-5:]:
        found, data = file.describe(), file.text.encode()
        assert found.num_bytes == len(data) and found.sha256 == hashlib.sha256(data).hexdigest()


def test_the_library_has_topics_and_source_but_no_tests_and_no_installed_packages(library):
    names = [document.name for document in library]
    assert "pydoc/FLOAT" not in names and any(name.startswith("pydoc/") for name in names)
    assert "abc.py" in names
    assert not [name for name in names if {"test", "tests", "site-packages"} & set(name.split("/"))]
    assert names == [document.name for document in standard_library()]


def numbered(count):
    """An array whose tokens are their index."""
    return np.arange(count, dtype=np.uint16)


def whole(batches, step):
    return batches.batch(step, range(batches.rows)).tokens


def test_a_batch_is_a_function_of_seed_and_step():
    crops = Crops([(numbered(1000), 1.0)], rows=4, length=16, seed=3)
    forward = [whole(crops, step) for step in range(6)]
    torch.manual_seed(99)
    again = Crops([(numbered(1000), 1.0)], rows=4, length=16, seed=3)
    backward = [whole(again, step) for step in reversed(range(6))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forward, backward, strict=True))
    assert not torch.equal(forward[0], forward[1])
    assert not torch.equal(forward[0], whole(Crops([(numbered(1000), 1.0)], rows=4, length=16, seed=4), 0))


def test_rows_of_a_batch_match_the_whole_batch():
    crops = Crops([(numbered(1000), 1.0), (numbered(50), 2.0)], rows=6, length=16, seed=3)
    parts = [crops.batch(2, range(start, start + 2)) for start in (0, 2, 4)]
    assert torch.equal(torch.cat([part.tokens for part in parts]), whole(crops, 2))
    assert all(bool(part.learned.all()) and part.segment is None for part in parts)


def test_crops_are_consecutive_tokens_and_reach_both_ends():
    crops = Crops([(numbered(20), 1.0)], rows=64, length=16, seed=0)
    batch = whole(crops, 0)
    assert batch.shape == (64, 17) and batch.dtype == torch.int64
    assert torch.equal(batch - batch[:, :1], torch.arange(17).expand(64, 17))
    assert set(batch[:, 0].tolist()) == {0, 1, 2, 3}


def test_sources_share_the_rows_in_proportion():
    low, high = numbered(100), numbered(100) + 1000
    crops = Crops([(low, 1.0), (high, 3.0)], rows=400, length=8, seed=1)
    from_high = float((whole(crops, 0)[:, 0] >= 1000).float().mean())
    assert 0.65 < from_high < 0.85


def test_corpus_of_exactly_one_sequence_is_enough():
    crops = Crops([(numbered(17), 1.0)], rows=2, length=16, seed=0)
    assert torch.equal(whole(crops, 0), torch.arange(17).expand(2, 17))


@pytest.mark.parametrize("count", [0, 5, 16])
def test_corpus_shorter_than_a_sequence_is_refused(count):
    with pytest.raises(ValueError, match=f"corpus of {count} tokens is shorter than one sequence of 16"):
        Crops([(numbered(100), 1.0), (numbered(count), 1.0)], rows=2, length=16, seed=0)


class Constant:
    def __init__(self, value, rows):
        self.value, self.rows = value, rows

    def batch(self, step, rows):
        tokens = torch.tensor([[self.value, step, row] for row in rows]).view(-1, 3)
        return TrainBatch(tokens=tokens, learned=tokens > 0)


def test_stages_follow_each_other():
    stages = Stages((3, Constant(1, 4)), (5, Constant(2, 4)))
    found = [stages.batch(step, range(2, 4)).tokens[0].tolist() for step in range(5)]
    assert found == [[1, 0, 2], [1, 1, 2], [1, 2, 2], [2, 3, 2], [2, 4, 2]]
    assert stages.batch(1, range(4)).tokens[0, 0] == 1, "in any order of calls"


def test_stage_with_fewer_rows_gives_fewer():
    stages = Stages((1, Constant(1, 4)), (2, Constant(2, 3)))
    assert stages.rows == 4
    assert [len(stages.batch(step, range(4)).tokens) for step in range(2)] == [4, 3]
    assert [len(stages.batch(1, rows).tokens) for rows in (range(2), range(2, 4), range(3, 4))] == [2, 1, 0]


def test_step_beyond_the_last_stage_is_refused():
    with pytest.raises(ValueError, match="step 5 is beyond the last stage, which ends at 5"):
        Stages((3, Constant(1, 4)), (5, Constant(2, 4))).batch(5, range(4))
