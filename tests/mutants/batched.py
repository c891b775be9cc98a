"""Mutants of the study of batched decoding: how many tokens each row commits, and which slots move."""

from tests.mutants.mutant import Mutant

TESTS = "tests/benchmarks/test_batched.py"
TEXTS = f"{TESTS}::test_all_ways_write_what_plain_decoding_writes"
LEAST = f"{TESTS}::test_lock_step_keeps_the_least_that_an_active_row_accepts"
MOVED = f"{TESTS}::test_moved_rows_end_at_one_slot_and_hold_what_rows_at_rest_hold"

MUTANTS = (
    Mutant(
        "lock-step: by the most that is accepted",
        "benchmarks.batched_modes:LockStep.__call__",
        "torch.where($active, $accepted, $max_depth).min",
        "torch.where($active, $accepted, 0).max",
        (LEAST,),
    ),
    Mutant(
        "lock-step: rows that have ended hold the others",
        "benchmarks.batched_modes:LockStep.__call__",
        "torch.where($active, $accepted, $max_depth).min",
        "$accepted.min",
        (LEAST,),
    ),
    Mutant(
        "lock-step: a row that is cut goes on from the end of its draft",
        "benchmarks.batched_modes:LockStep.__call__",
        "$picks.gather(1, $kept[:, None])[:, 0]",
        "full.next",
        (TEXTS,),
    ),
    Mutant(
        "realigned: the padding is seen",
        "benchmarks.batched_modes:_AlignedAttention.__init__",
        "$slot >= 0",
        "$slot == $slot",
        (TEXTS,),
    ),
    Mutant(
        "realigned: positions are slots",
        "benchmarks.batched_modes:_AlignedAttention.__init__",
        "$slots = ($slots + $offset[:, None]).clamp(max=$capacity - 1)",
        "self.positions = self.positions + $offset[:, None]\n"
        "$slots = ($slots + $offset[:, None]).clamp(max=$capacity - 1)",
        (TEXTS,),
    ),
    Mutant(
        "realigned: nodes are written where rows without padding write",
        "benchmarks.batched_modes:_AlignedAttention.__init__",
        "$slots + $offset[:, None]",
        "$slots",
        (TEXTS,),
    ),
    Mutant(
        "realigned: values stay behind",
        "benchmarks.batched_modes:Alignment.align",
        "$gather($store, $source, $into)",
        "$gather($store, $source, $into) if $store is cache.keys else $into.copy_($store)",
        (TEXTS,),
    ),
    Mutant(
        "realigned: the draft's cache stays behind",
        "benchmarks.batched_modes:Alignment.align",
        "self._caches",
        "self._caches[:1]",
        (TEXTS,),
    ),
    Mutant(
        "realigned: rows move the other way",
        "benchmarks.batched_modes:Alignment.align",
        "($slot - $shift).clamp",
        "($slot + $shift).clamp",
        (TEXTS,),
    ),
    Mutant(
        "realigned: rows move from where they began",
        "benchmarks.batched_modes:Alignment.align",
        "($offset2 - $offset)[:, None]",
        "$offset2[:, None]",
        (TEXTS, MOVED),
    ),
    Mutant(
        "realigned: wider than the longest sequence",
        "benchmarks.batched_modes:Alignment.align",
        "$length.max()",
        "$length.max() + 1",
        (MOVED,),
    ),
    Mutant(
        "the model of lock-step has one row",
        "benchmarks.batched:locked_model",
        "$num_rows * $depth",
        "$depth",
        (f"{TESTS}::test_the_model_of_lock_step",),
    ),
)
