"""Mutants of the step: sequences, caches, positions, the draft model."""

from tests.mutants.mutant import ADMISSION, CONFORMANCE, FORKS, LOGPROBS, MODEL, NOISE, TREE_GROWERS, TREES, Mutant

MUTANTS = (
    Mutant(
        "skip commit",
        "decode:Decoder.decide",
        "self.target.commit($tree, $outcome)",
        "pass",
        (CONFORMANCE,),
    ),
    Mutant(
        "commit a tree as if it were a chain",
        "models.target:Target.commit",
        "None if $chain else $path",
        "None",
        (TREES,),
    ),
    Mutant(
        "shift positions by one",
        "models.native.attention:CacheAttention.__init__",
        "$length + $depth[:, $start:]",
        "$length + $depth[:, $start:] + 1",
        (f"{CONFORMANCE}::test_full_capacity_while_another_row_is_in_mid_generation",),
    ),
    Mutant(
        "drop the ancestor mask",
        "models.native.attention:visible_slots",
        "$ancestors[:, $start:].gather(2, $index)",
        "$ancestors[:, $start:].gather(2, $index) | True",
        (CONFORMANCE,),
    ),
    Mutant(
        "use row 0's length for all rows",
        "models.native.attention:CacheAttention.__init__",
        "$length[:, None]",
        "$length[:1, None].expand(len($length), 1)",
        (CONFORMANCE,),
    ),
    Mutant(
        "forget the draft's catch-up",
        "drafters.model:ModelDrafter.observe",
        "($num_committed - 1).clamp(0, $max_depth - 1)",
        "($num_committed - 1).clamp(0, $max_depth)",
        (MODEL,),
    ),
    Mutant(
        "noise keyed by position only under rejection",
        "core.batch_state:BatchState.key",
        "$Key($seed_=$seed, $position_=$position, $stream_=$stream, $step=$steps.view($shape), $node_=$node, "
        "$stage_=$stage)",
        "$Key($seed_=$seed, $position_=$position, $stream_=$stream, $step=0, $node_=0, $stage_=0)",
        (NOISE,),
    ),
    Mutant(
        "target noise keyed by the step",
        "core.batch_state:BatchState.key",
        "$Key($seed_=$seed, $position_=$position, $stream_=$stream)",
        "$Key($seed_=$seed, $position_=$position, $stream_=$stream, step=self.steps.view(shape))",
        (CONFORMANCE,),
    ),
    Mutant(
        "generate past the end-of-text token",
        "core.ops:TensorOps.append",
        "torch.where($stops.any(-1), $stops.int().argmax(-1) + 1, $num_committed)",
        "$num_committed",
        (CONFORMANCE,),
    ),
    Mutant(
        "overshoot the limit",
        "core.ops:TensorOps.append",
        "torch.minimum($until, $limit - $length)",
        "$until",
        (TREES,),
    ),
    Mutant(
        "a fork copies one slot too few",
        "core.cache:SlotCache.begin",
        "$layer[$rows, :$longest] = $layer[$source, :$longest]",
        "$layer[$rows, :$longest - 1] = $layer[$source, :$longest - 1]",
        (ADMISSION,),
    ),
    Mutant(
        "rows are forked one after another",
        "core.cache:SlotCache.begin",
        "$layer[$rows, :$longest] = $layer[$source, :$longest]",
        "[$layer[i, :$longest].copy_($layer[j, :$longest].clone()) for i, j in zip($rows, $source)]",
        (ADMISSION,),
    ),
    Mutant(
        "a fork of the draft's cache is claimed and not made",
        "drafters.model:ModelDrafter.prefill",
        "$view = $reader.admit($cache, $admission)",
        "storage = $cache.storage\n"
        "length = torch.minimum($admission.prefix_length, storage.length[$admission.source])\n"
        "storage.length.index_copy_(0, $admission.rows, length)\n"
        "$view = storage.view($admission.rows)",
        (f"{FORKS}::test_acceptance_after_a_fork_is_that_without",),
    ),
    Mutant(
        "a draft that has fallen behind is forked as if it had not",
        "core.cache:SlotCache.begin",
        "torch.minimum($forked, $length[$source])",
        "$forked",
        (f"{FORKS}::test_fork_of_a_row_whose_draft_has_fallen_behind",),
    ),
    Mutant(
        "a stop token comes one token too late",
        "core.processing:ProcessingState.apply",
        "$position[..., None] < $late_until[:, None]",
        "$position[..., None] <= $late_until[:, None]",
        (ADMISSION,),
    ),
    Mutant(
        "a log-probability is read at the token's own node",
        "core.ops:TensorOps.gather_logprobs",
        "(1, 0)",
        "(0, 1)",
        (LOGPROBS,),
    ),
    Mutant(
        "commit a draft's tree as if it were a chain",
        "drafters.model:ModelDrafter.observe",
        "torch.where($kept, $slots + 1, -1)",
        "None",
        (f"{TREE_GROWERS}::test_after_every_step_the_drafts_cache_equals_a_fresh_reading",),
    ),
    Mutant(
        "commit the wrong path in the draft's cache",
        "drafters.model:ModelDrafter.observe",
        "torch.where($kept, $slots + 1, -1)",
        "torch.where($kept, outcome.path, -1)",
        (f"{TREE_GROWERS}::test_after_every_step_the_drafts_cache_equals_a_fresh_reading",),
    ),
    Mutant(
        "commit the root behind its path",
        "drafters.model:ModelDrafter.observe",
        "$truncate($length - $rooted.long())",
        "pass",
        (f"{TREE_GROWERS}::test_after_every_step_the_drafts_cache_equals_a_fresh_reading",),
    ),
)
