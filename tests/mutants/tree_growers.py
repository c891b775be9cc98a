"""Mutants of how trees grow."""

from tests.mutants.mutant import CONFIDENT, DISTRIBUTIONS, OPTIMAL, TREE_GROWER_LIMITS, TREE_GROWERS, Mutant

MUTANTS = (
    Mutant(
        "verify with draft probabilities that were not sampled from",
        "drafters.tree.samplers:iid",
        "$scores.softmax",
        "logits.softmax",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "siblings share a noise key",
        "drafters.tree.samplers:iid",
        "$level.node",
        "$level.first[0]",
        (f"{TREE_GROWERS}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "parents share noise",
        "drafters.tree.samplers:no_replacement",
        "$key($position, $draft, $node=$first)",
        "$key($position, $draft, $node=0)",
        (f"{TREE_GROWERS}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "a tree one deeper than its limit",
        "drafters.tree.topology:TopologyGrower.grow",
        "$depths <= $room[:, None]",
        "$depths - 1 <= $room[:, None]",
        (f"{TREE_GROWER_LIMITS}::test_no_node_stands_deeper_than_the_limit_leaves",),
    ),
    Mutant(
        "a child below an invalid parent",
        "drafters.tree.topology:TopologyGrower.grow",
        "$take($above, $parent) & $within[:, $depth:$depth + 1]",
        "batch.active[:, None] & $within[:, $depth:$depth + 1]",
        (f"{TREE_GROWER_LIMITS}::test_a_padded_vocabulary_is_cut_or_filled_though_it_be_narrower_than_the_tree",),
    ),
    Mutant(
        "shared draws one position too far",
        "drafters.tree.topology:TopologyGrower.grow",
        "$length[:, None] + $depth",
        "$length[:, None] + $depth + 1",
        (f"{TREE_GROWERS}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "greedy rows draw siblings from a one-token distribution",
        "drafters.tree.samplers:_sampled_or_greedy",
        "$order = torch.where($rows, $likeliest($logits, $width), $order)",
        "",
        (f"{TREE_GROWERS}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "draft probabilities of the wrong parent",
        "drafters.tree.topology:TopologyGrower.__init__",
        "{$node: $i for $i, $node in enumerate(expanded)}",
        "{$node: 0 for $node in expanded}",
        (f"{TREE_GROWERS}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "a rerank that drops parents",
        "drafters.tree.confident:ConfidentGrower._rerank",
        "$worth[:, 1:].sort(dim=-1, descending=True, stable=True).indices[:, :$num_drafted] + 1",
        "$worth.shape[1] - $worth[:, 1:].flip(1).sort(dim=-1, descending=True, stable=True).indices[:, "
        ":$num_drafted] - 1",
        (CONFIDENT,),
    ),
    Mutant(
        "a node's score without its path's",
        "drafters.tree.confident:ConfidentGrower.grow",
        "$worth[-1].gather(1, $frontier - $start($depth - 1))[..., None]",
        "$worth[-1].gather(1, $frontier - $start($depth - 1))[..., None] * 0",
        (CONFIDENT,),
    ),
    Mutant(
        "expanded nodes take others' slots",
        "drafters.tree.confident:ConfidentGrower.grow",
        "$place.gather(1, $keep // $width)",
        "$place.gather(1, $keep % $place.shape[1])",
        (CONFIDENT,),
    ),
    Mutant(
        "a tree's value without its depth",
        "drafters.tree.optimal:best_topology.best",
        "$best($size - 1, $levels - 1, 0)",
        "$best($size - 1, $levels, 0)",
        (OPTIMAL,),
    ),
)
