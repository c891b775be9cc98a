"""Known ways to break the shipped code, as patches that are applied at run time and must not survive.

A mutant dies by an ordinary test: one that was written for the law, not for the mutant.
"""

from tests.mutants import kernel, panels, processing, processing_kernel, rules, service, step, tree_rules, trees

MUTANTS = step.MUTANTS + rules.MUTANTS + tree_rules.MUTANTS + trees.MUTANTS
MUTANTS += kernel.MUTANTS + panels.MUTANTS + service.MUTANTS + processing.MUTANTS
MUTANTS += processing_kernel.MUTANTS
