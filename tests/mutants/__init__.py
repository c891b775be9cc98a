"""Known ways to break the shipped code, as patches that are applied at run time and must not survive.

A mutant dies by an ordinary test: one that was written for the law, not for the mutant.
"""

from tests.mutants import guidance, kernel, lane, panels, processing, rules, service, step, tree_rules, trees

MUTANTS = step.MUTANTS + rules.MUTANTS + tree_rules.MUTANTS + trees.MUTANTS
MUTANTS += processing.MUTANTS + guidance.MUTANTS + lane.MUTANTS
MUTANTS += kernel.MUTANTS + panels.MUTANTS + service.MUTANTS
