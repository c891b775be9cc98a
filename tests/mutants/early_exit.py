"""Mutants of early-exit drafting: the shared layers, the head's lag, and resumed verification."""

from tests.mutants.mutant import Mutant

TESTS = "tests/drafters/test_early_exit.py"
STATES = "tests/drafters/test_early_exit_states.py"
HEADS = "tests/draft_heads/test_early_exit.py"
RESUMED = f"{STATES}::test_verification_that_goes_on_gives_what_a_whole_one_gives"
TRAINED = f"{STATES}::test_what_is_drafted_with_is_what_is_trained"
PAUSES = f"{TESTS}::test_catches_up_after_pauses"

MUTANTS = (
    Mutant(
        "the shared layers are off by one",
        "drafters.early_exit:EarlyExitDrafter.allocate",
        "$view(layers=range($exit_layer))",
        "$view(layers=range(1, 1 + $exit_layer))",
        (f"{TESTS}::test_draft_equal_to_target_takes_the_fewest_steps",),
    ),
    Mutant(
        "accepted tokens are not queued for the head",
        "drafters.early_exit:EarlyExitDrafter.observe",
        "$unread.append($states, $first, $num)",
        "$unread.append($states, $first, $first)",
        (f"{TESTS}::test_draft_equal_to_target_takes_the_fewest_steps",),
    ),
    Mutant(
        "the root is queued for a head that has read it",
        "drafters.early_exit:EarlyExitDrafter.observe",
        "torch.minimum(($length + $unread.count - $root).clamp(min=0), $num)",
        "torch.zeros_like($num)",
        (f"{STATES}::test_the_heads_cache_is_of_what_the_target_said_of_verified_tokens",),
    ),
    Mutant(
        "the head's lag is ignored",
        "drafters.early_exit:EarlyExitDrafter.observe",
        "max($depth, $lag + 1 + $max_depth)",
        "$depth",
        (PAUSES,),
    ),
    Mutant(
        "unread states are dropped when the buffer is full",
        "drafters.early_exit:EarlyExitDrafter.observe",
        "$read_hidden($lm, $cache, $states[:, :-1], $unread.count)",
        "$cache.length",
        (PAUSES,),
    ),
    Mutant(
        "states overwrite those of the previous step",
        "drafters.hidden_states:PendingStates.append",
        "self.count[:, None] + $index",
        "$index",
        (PAUSES,),
    ),
    Mutant(
        "the newest state comes before the unread ones",
        "drafters.hidden_states:PendingStates.followed_by",
        "torch.where(($index == self.count[:, None])[..., None], $newest, $states[:, :$size + 1])",
        "torch.where(($index == 0)[..., None], $newest, $states[:, :$size + 1].roll(1, dims=1))",
        (f"{TESTS}::test_draft_equal_to_target_takes_the_fewest_steps",),
    ),
    Mutant(
        "states of the end of the draft instead of the accepted path",
        "drafters.hidden_states:path_hidden",
        "F.pad($path, (1, 0)).clamp(min=0)",
        "torch.arange(1 + $path.shape[1], device=hidden.device).expand(len(hidden), -1)",
        (f"{TESTS}::test_a_tree_by_the_target_itself_takes_the_fewest_steps",),
    ),
    Mutant(
        "the slots of the shared layers are not renumbered",
        "drafters.early_exit:EarlyExitDrafter._resumable",
        "$shared.permute(torch.where($place > 0, $place, -1))",
        "pass",
        (RESUMED,),
    ),
    Mutant(
        "states in the order in which they were read",
        "drafters.early_exit:EarlyExitDrafter._resumable",
        "$known.gather(1, $place[..., None].expand(-1, -1, $known.shape[-1]))",
        "F.pad($known, (0, 0, 0, max(0, tree.num_nodes - $known.shape[1])))[:, :tree.num_nodes]",
        (RESUMED,),
    ),
    Mutant(
        "leaves count as having passed the shared layers",
        "drafters.early_exit:EarlyExitDrafter._resumable",
        "F.pad($place[:, 1:] > 0, (1, 0), $value=True)",
        "torch.ones_like(tree.valid)",
        (RESUMED,),
    ),
    Mutant(
        "one leaf more counts as having passed the shared layers",
        "drafters.early_exit:_num_leading",
        "next(($node for $node in range(len($parents)) if $node not in $parents))",
        "1 + next(($node for $node in range(len($parents)) if $node not in $parents))",
        (RESUMED,),
    ),
    Mutant(
        "the head writes into the target's cache",
        "drafters.early_exit:EarlyExitDrafter.allocate",
        "$new_cache($rows, $max_length + $max_expanded).view()",
        "context.cache.apart(layers=range(self.lm.num_layers))",
        (f"{TESTS}::test_the_outputs_are_the_references_whatever_the_head_says",),
    ),
    Mutant(
        "a fork forgets the unread states of its source",
        "drafters.early_exit:EarlyExitDrafter.prefill",
        "if $longest_forked:\n    $missing = $count\n    $read_hidden($lm, $view, $states, $missing)",
        "if $longest_forked < 0:\n    $missing = $count\n    $read_hidden($lm, $view, $states, $missing)",
        (f"{STATES}::test_a_fork_of_a_row_whose_head_has_fallen_behind", TRAINED),
    ),
    Mutant(
        "a fork reads the unread states of its own row",
        "drafters.early_exit:EarlyExitDrafter.prefill",
        "$states[$source, :-1]",
        "$states[admission.rows, :-1]",
        (f"{STATES}::test_a_fork_of_a_row_whose_head_has_fallen_behind", TRAINED),
    ),
    Mutant(
        "a step that is done again reads the root twice",
        "drafters.early_exit:EarlyExitDrafter.prepare",
        "$truncate(torch.minimum($length, $length2 - 1 - $unread.count))",
        "pass",
        (f"{STATES}::test_a_step_that_is_cut_off_before_it_is_decided_is_done_again",),
    ),
    Mutant(
        "the recycled state is that of the token itself",
        "drafters.recycled_states:RecycledStates._add",
        "($at - 1).clamp",
        "$at.clamp",
        (TRAINED,),
    ),
    Mutant(
        "the recycled state is that of another row",
        "drafters.recycled_states:RecycledStates._add",
        "($rows[:, None], ($at - 1).clamp(0, $past.shape[1] - 1))",
        "($rows[:, None] * 0, ($at - 1).clamp(0, $past.shape[1] - 1))",
        (TRAINED,),
    ),
    Mutant(
        "a fork does not copy recycled states",
        "drafters.recycled_states:RecycledStates.copy_prefixes",
        "$past[$rows, :$longest] = $past[$source, :$longest]",
        "pass",
        (TRAINED,),
    ),
    Mutant(
        "a draft does not age",
        "drafters.recycled_states:RecycledStates.by_depth",
        "torch.arange($depth + 1, device=$batch.device).expand($rows, -1)",
        "torch.zeros($rows, $depth + 1, dtype=torch.int64, device=$batch.device)",
        (TRAINED,),
    ),
    Mutant(
        "training sees target states of tokens not yet verified",
        "draft_heads.early_exit:EarlyExitHead._recycled",
        "torch.minimum($position, $crop)",
        "$position",
        (HEADS,),
    ),
    Mutant(
        "the loss trains the target through recycled states",
        "draft_heads.early_exit:EarlyExitHead.unroll",
        "$hidden[$num_layers].detach()",
        "$hidden[$num_layers]",
        (HEADS,),
    ),
)
