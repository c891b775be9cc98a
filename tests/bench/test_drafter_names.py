"""Drafters as the benchmark reads them: one, or a list of several that choose their draft lengths."""

import pytest

from paceline.bench.drafter_names import chooses_lengths, drafters_of
from tests.api.checkpoints import pair

KNOWN = ("ngram", "suffix", "copy", "model", "layer_skip", "my+head")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A draft model whose directory has a plus in its name."""
    path = tmp_path_factory.mktemp("a+b") / "copy+suffix"
    path.symlink_to(pair().draft, target_is_directory=True)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "ngram",
        "my+head",
        "suffix:max_tokens=0",
        "layer_skip:on_the_fly=true,ratio=0.3",
        "layer_skip:attention=1;2",
        "{folder}",
        "model:{folder}",
        "model:{folder} < ngram",
        "model:{folder} x2 + ngram",
        "model:draft={folder},vocabulary=slem",
    ],
)
def test_one_drafter(folder, text):
    text = text.format(folder=folder)
    assert drafters_of(text, KNOWN) == [text]
    assert not chooses_lengths(text, KNOWN)


@pytest.mark.parametrize(
    "parts",
    [
        ["copy", "suffix:max_tokens=0"],
        ["suffix:max_tokens=0", "copy"],
        ["auto", "model"],
        ["ngram", "layer_skip:on_the_fly=true", "copy"],
        ["copy", "model:{plain} x2 + ngram"],
        ["copy", "model:{folder} < ngram"],
        ["auto", "{folder}"],
        ["model:owner/name", "copy"],
    ],
)
def test_lists(folder, parts):
    parts = [part.format(plain=pair().draft, folder=folder) for part in parts]
    assert drafters_of("+".join(parts), KNOWN) == parts
    assert chooses_lengths("+".join(parts), KNOWN)


def test_auto_chooses_its_lengths():
    assert drafters_of("auto", KNOWN) == ["auto"] and chooses_lengths("auto", KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none", "--drafter none: known here are ngram"),
        ("oracle+copy", "--drafter oracle: known here are"),
        ("suffix:most=0", "has no option 'most'"),
        ("copy+suffix:most=0", "has no option 'most'"),
        ("model:no/where/at/all < ngram", "no/where/at/all"),
        ("{empty}", "a\\+b"),
        ('{{"method": "staged", "drafters": ["model:{plain}", "ngram"], "num_speculative_tokens": 3}}', "--k gives"),
    ],
)
def test_what_is_no_drafter_is_refused(tmp_path, text, message):
    empty = tmp_path / "a+b"
    empty.mkdir()
    with pytest.raises(ValueError, match=message):
        drafters_of(text.format(empty=empty, plain=pair().draft), KNOWN)
