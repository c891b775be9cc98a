"""Known ways to break the shipped code, as patches that are applied at run time and must not survive.

A mutant dies by an ordinary test: one that was written for the law, not for the mutant.
"""

from tests.mutants import (
    batched,
    data,
    early_exit,
    guidance,
    kernel,
    lane,
    layer_skip,
    panels,
    processing,
    processing_kernel,
    prophet,
    resume_kernel,
    rules,
    service,
    step,
    training,
    tree_rules,
    trees,
)

MUTANTS = (
    batched.MUTANTS
    + data.MUTANTS
    + early_exit.MUTANTS
    + guidance.MUTANTS
    + kernel.MUTANTS
    + lane.MUTANTS
    + layer_skip.MUTANTS
    + panels.MUTANTS
    + processing.MUTANTS
    + processing_kernel.MUTANTS
    + prophet.MUTANTS
    + resume_kernel.MUTANTS
    + rules.MUTANTS
    + service.MUTANTS
    + step.MUTANTS
    + training.MUTANTS
    + tree_rules.MUTANTS
    + trees.MUTANTS
)
