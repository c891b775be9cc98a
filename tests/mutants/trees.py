"""Mutants of how trees grow."""

from tests.mutants.mutant import CONFIDENT, GROW, GROWN_LIMITS, LAWS, OPTIMAL, Mutant

MUTANTS = (
    Mutant(
        "verify with a law that was not sampled from",
        "drafters/grow/draws.py",
        "laws=scores.softmax(-1))",
        "laws=logits.softmax(-1))",
        (LAWS,),
    ),
    Mutant(
        "siblings share a lane",
        "drafters/grow/draws.py",
        "lane=level.node)",
        "lane=level.first[0])",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "parents share a race",
        "drafters/grow/draws.py",
        "lane=level.first)",
        "lane=0)",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "a tree one deeper than its limit",
        "drafters/grow/topology.py",
        "self.depths <= room[:, None]",
        "self.depths - 1 <= room[:, None]",
        (f"{GROWN_LIMITS}::test_no_node_stands_deeper_than_the_limit_leaves",),
    ),
    Mutant(
        "a child below an invalid parent",
        "drafters/grow/topology.py",
        "grows = take(above, step.level.parent) &",
        "grows = batch.active[:, None] &",
        (f"{GROWN_LIMITS}::test_a_padded_vocabulary_is_cut_or_filled_though_it_be_narrower_than_the_tree",),
    ),
    Mutant(
        "shared draws one position too far",
        "drafters/grow/topology.py",
        "batch.length[:, None] + depth, step.level",
        "batch.length[:, None] + depth + 1, step.level",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "greedy rows draw siblings from a law that has one token",
        "drafters/grow/draws.py",
        "    order = torch.where(rows, likeliest(logits, level.width), order)\n",
        "",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "a law of the wrong parent",
        "drafters/grow/topology.py",
        "place = {node: i for i, node in enumerate(inner)}",
        "place = {node: 0 for node in inner}",
        (f"{GROW}::test_every_node_is_what_a_naive_forward_of_its_path_gives",),
    ),
    Mutant(
        "a rerank that drops parents",
        "drafters/grow/confident.py",
        "best = worth[:, 1:].sort(dim=-1, descending=True, stable=True).indices[:, : self.shape.num_drafted] + 1",
        "best = worth.shape[1] - worth[:, 1:].flip(1).sort(dim=-1, descending=True, stable=True)"
        ".indices[:, : self.shape.num_drafted] - 1",
        (CONFIDENT,),
    ),
    Mutant(
        "worth of a node without its path's",
        "drafters/grow/confident.py",
        "[..., None] + share).flatten(1)",
        "[..., None] * 0 + share).flatten(1)",
        (CONFIDENT,),
    ),
    Mutant(
        "expanded nodes take others' slots",
        "drafters/grow/confident.py",
        "above = place.gather(1, keep // width)",
        "above = place.gather(1, keep % place.shape[1])",
        (CONFIDENT,),
    ),
    Mutant(
        "a tree's value without its depth",
        "drafters/grow/optimal.py",
        "best(size - 1, levels - 1, 0)",
        "best(size - 1, levels, 0)",
        (OPTIMAL,),
    ),
)
