"""Mutants of the ways in which rows of a batch advance in a study: who is cut to what, and what is moved where."""

from tests.mutants.mutant import Mutant

LOCKED, ALIGNED = "experiments/batched/lockstep.py", "experiments/batched/align.py"
TESTS = "tests/experiments/test_batched.py::test_{}"
TEXTS = TESTS.format("all_ways_write_what_plain_decoding_writes")
LEAST = TESTS.format("lock_step_keeps_the_least_that_an_active_row_accepts")
MOVED = TESTS.format("moved_rows_end_at_one_slot_and_hold_what_rows_at_rest_hold")

MUTANTS = (
    Mutant("lock-step: by the most that is accepted", LOCKED, "tree.max_depth).min()", "0).max()", (LEAST,)),
    Mutant(
        "lock-step: rows that have ended hold the others",
        LOCKED,
        "torch.where(batch.active, accepted, tree.max_depth).min()",
        "accepted.min()",
        (LEAST,),
    ),
    Mutant(
        "lock-step: a row that is cut goes on from the end of its draft",
        LOCKED,
        "own.picks.gather(1, kept[:, None])[:, 0]",
        "own.next",
        (TEXTS,),
    ),
    Mutant(
        "realigned: the padding is seen", ALIGNED, "(slot >= 0)[:, None, :]", "(slot == slot)[:, None, :]", (TEXTS,)
    ),
    Mutant(
        "realigned: positions are slots",
        ALIGNED,
        "        self.slots = (self.slots",
        "        self.positions = self.positions + offset[:, None]\n        self.slots = (self.slots",
        (TEXTS,),
    ),
    Mutant(
        "realigned: nodes are written where rows without padding write",
        ALIGNED,
        "(self.slots + offset[:, None]).clamp",
        "self.slots.clamp",
        (TEXTS,),
    ),
    Mutant(
        "realigned: values stay behind",
        ALIGNED,
        "_gather(store, source, into)",
        "_gather(store, source, into) if store is cache.keys else into.copy_(store)",
        (TEXTS,),
    ),
    Mutant("realigned: the draft's cache stays behind", ALIGNED, "in self._kept:", "in self._kept[:1]:", (TEXTS,)),
    Mutant("realigned: rows move the other way", ALIGNED, "(slot - shift)", "(slot + shift)", (TEXTS,)),
    Mutant(
        "realigned: rows move from where they began", ALIGNED, "(offset - self.offset)[", "(offset)[", (TEXTS, MOVED)
    ),
    Mutant(
        "realigned: wider than the longest text",
        ALIGNED,
        "end = length.max()",
        "end = length.max() + 1",
        (MOVED,),
    ),
    Mutant(
        "the model of lock-step has one row",
        "experiments/batched/table.py",
        "alpha ** (num_rows * depth)",
        "alpha**depth",
        (TESTS.format("the_model_of_lock_step"),),
    ),
)
