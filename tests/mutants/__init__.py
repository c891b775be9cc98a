"""Known ways to break the shipped code, as patches that are applied at run time and must not survive.

An ordinary test has to fail on each: one that checks a property of the code and was not written for the mutant.
"""

from tests.mutants import (
    batched,
    constraints,
    contexts,
    data,
    early_exit,
    fused_drafting,
    guidance,
    kernel,
    layer_skip,
    operators,
    packed_weights,
    processing,
    processing_kernel,
    prophet,
    runner,
    service,
    step,
    training,
    tree_growers,
    tree_verifiers,
    verifiers,
)

MUTANTS = (
    batched.MUTANTS
    + constraints.MUTANTS
    + contexts.MUTANTS
    + data.MUTANTS
    + early_exit.MUTANTS
    + fused_drafting.MUTANTS
    + guidance.MUTANTS
    + kernel.MUTANTS
    + layer_skip.MUTANTS
    + operators.MUTANTS
    + packed_weights.MUTANTS
    + processing.MUTANTS
    + processing_kernel.MUTANTS
    + prophet.MUTANTS
    + runner.MUTANTS
    + service.MUTANTS
    + step.MUTANTS
    + training.MUTANTS
    + tree_growers.MUTANTS
    + tree_verifiers.MUTANTS
    + verifiers.MUTANTS
)
