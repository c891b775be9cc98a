"""Mistakes in the contexts of requests."""

from tests.mutants.mutant import Mutant

CONTEXTS = ("tests/models/test_contexts.py",)

MUTANTS = (
    Mutant(
        "contexts are given to rows in the order of their numbers",
        "core.admission:Admission.new_contexts",
        "zip(self.row_numbers, $requests, $prefixes, strict=True)",
        "zip(sorted(self.row_numbers), $requests, $prefixes, strict=True)",
        CONTEXTS,
    ),
    Mutant(
        "a row that is given away keeps its context",
        "core.admission:Admission.new_contexts",
        "$prefix.length == 0",
        "$prefix.row != row",
        CONTEXTS,
    ),
    Mutant(
        "a view of some rows reads the contexts of the first ones",
        "core.cache:View.row_state",
        "$state[self.rows]",
        "$state[: len(self.rows)]",
        CONTEXTS,
    ),
    Mutant(
        "a fork does not copy the context of its source",
        "core.cache:SlotCache.begin",
        "state[$rows] = state[$source]",
        "pass",
        CONTEXTS,
    ),
    Mutant(
        "negative prompts read the contexts of the first rows",
        "core.cache:SlotCache.part",
        "{name: state[start : start + rows] for name, state in $all}",
        "{name: state[:rows] for name, state in $all}",
        CONTEXTS,
    ),
    Mutant(
        "a negative prompt never has a context of its own",
        "models.guided:_negative",
        "$own if $given is None else $given",
        "$own",
        CONTEXTS,
    ),
    Mutant(
        "prefixes are shared across contexts",
        "engine.prefixes:Source.common",
        "$length and self.context == other.context",
        "$length",
        CONTEXTS,
    ),
    Mutant(
        "contexts are equal when their names are",
        "core.context:Context.__eq__",
        "return all($each)",
        "return True",
        CONTEXTS,
    ),
    Mutant(
        "the context that a row was read with is forgotten",
        "decode:Decoder.begin",
        "self.contexts[$row] = $context",
        "pass",
        CONTEXTS,
    ),
    Mutant(
        "a given prefix may be of another context",
        "decode:Decoder._check_prefix",
        "self.contexts[$row] != $context",
        "False",
        CONTEXTS,
    ),
)
