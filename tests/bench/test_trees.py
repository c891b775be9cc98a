import pytest

from paceline.bench.trees import nodes_of, read_trees, runs_draft, shape_of, tree_name


def test_trees_are_named_by_their_nodes_with_the_root():
    assert tree_name(16) == "model tree 16" and nodes_of("model tree 16") == 16
    assert nodes_of("model") is None and nodes_of("model tree x") is None
    assert [runs_draft(name) for name in ("model", "model tree 8", "ngram", "plain")] == [True, True, False, False]
    assert shape_of(16, 8).num_drafted == 15 and shape_of(2, 1).max_width == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8,16", [("model tree 8", 4), ("model tree 16", 8)]),
        ("16x6", [("model tree 16", 6)]),
        (" 2 , 3x2 ", [("model tree 2", 1), ("model tree 3", 2)]),
    ],
)
def test_a_depth_is_given_or_half_the_nodes(text, expected):
    assert read_trees(text) == expected


@pytest.mark.parametrize("text", ["", "1", "8x8", "8x0", "eight", "8,", "16x6,16x8"])
def test_other_trees_are_refused(text):
    with pytest.raises(ValueError, match=r"--tree .*give"):
        read_trees(text)
