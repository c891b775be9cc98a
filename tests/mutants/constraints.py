"""Mutants of host-side constraints: masks at every node, and what they do to drafts."""

from tests.mutants.mutant import Mutant

DISTRIBUTIONS = "tests/constraints/test_distributions.py"
HOST_CONSTRAINTS = "tests/constraints/test_host_constraints.py"
GRAMMARS = "tests/constraints/test_grammars.py"
PROCESSORS = "tests/constraints/test_processors.py"

MUTANTS = (
    Mutant(
        "a node's mask is that of its parent",
        "constraints.host:HostConstraints.mask",
        "$allowed[$place, $nodes] = one",
        "$allowed[$place, $nodes] = one[[$nodes.index(max(self._drafts[row].parents[node], 0)) for node in $nodes]]",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "a grammar is not rolled back after a draft",
        "constraints.token_masks:_walk",
        "$rollback($grammars, len($path) - 1)",
        "pass",
        (HOST_CONSTRAINTS,),
    ),
    Mutant(
        "a grammar is rolled back by one token where a branch ends",
        "constraints.token_masks:_walk",
        "$rollback($grammars, back)",
        "$rollback($grammars, 1)",
        (HOST_CONSTRAINTS,),
    ),
    Mutant(
        "draft probabilities keep tokens that were pruned",
        "verifiers.draft_probs:masked",
        "$probs[$mask.rows] * $allowed",
        "$probs[$mask.rows] * ($allowed | True)",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "draft probabilities lose what is forbidden after another node",
        "verifiers.draft_probs:masked",
        "$parent.scatter_(1, torch.where($source >= 0, $source, $number), $parents)",
        "$parent.scatter_(1, torch.where($source >= 0, $source, $number), torch.zeros_like($parents))",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "below a forbidden node drafts go on",
        "constraints.token_masks:_walk",
        "if $advance($grammars, $tokens[$node]):\n"
        "    $path.append($node)\n"
        "    yield $node\n"
        "    $waiting = $waiting + $children[$node]",
        "if $advance($grammars, $tokens[$node]):\n"
        "    $path.append($node)\n"
        "    yield $node\n"
        "$waiting = $waiting + $children[$node]",
        (HOST_CONSTRAINTS,),
    ),
    Mutant(
        "processors see the sequence without its draft",
        "constraints.host:HostConstraints._call_processors",
        "$way[:$depth($node)]",
        "$way[:0]",
        (PROCESSORS,),
    ),
    Mutant(
        "processors are called for nodes that are not valid",
        "constraints.host:HostConstraints._call_processors",
        "if $valid:\n"
        "    $way = $ways[$row, $node]\n"
        "    $tokens = torch.cat(($known, $way[:$depth($node)]))\n"
        "    $scores[$row, $node] = $processed($processors, $tokens, $scores[$row, $node])",
        "if $valid or $node:\n"
        "    $way = $ways[$row, $node]\n"
        "    $tokens = torch.cat(($known, $way[:$depth($node)]))\n"
        "    $scores[$row, $node] = $processed($processors, $tokens, $scores[$row, $node])",
        (f"{PROCESSORS}::test_a_processor_is_called_once_for_every_valid_node",),
    ),
    Mutant(
        "a processor writes into the ids that the next one sees",
        "constraints.host:_processed",
        "$process($tokens.clone(), $logits.clone())",
        "$process($tokens, $logits.clone())",
        (PROCESSORS,),
    ),
    Mutant(
        "tokens of a step without its constraints are reported",
        "engine.scheduler:Scheduler._give",
        "$row in $failures",
        "$row in $failures and result.finish[$row] is not Finish.RUNNING",
        (HOST_CONSTRAINTS,),
    ),
    Mutant(
        "steps with constraints are recorded as graphs",
        "engine.graphs:Recorder.kind",
        "$state is None or $wants_logprobs or $busy",
        "$state is None or $wants_logprobs",
        (f"{HOST_CONSTRAINTS}::test_steps_with_rules_are_called_and_others_replayed",),
    ),
    Mutant(
        "a released row keeps its constraints",
        "decode:Decoder.release",
        "self.constraints.release(rows)",
        "",
        (HOST_CONSTRAINTS,),
    ),
    Mutant(
        "the end may follow what is not complete",
        "constraints.grammar:TextGrammarState.allowed",
        "$mask[list($ends)] = $may_end",
        "$mask[list($ends)] = True",
        (GRAMMARS,),
    ),
    Mutant(
        "an end that was drafted is not taken back",
        "constraints.grammar:TextGrammarState.rollback",
        "$ended = False",
        "",
        (GRAMMARS,),
    ),
    Mutant(
        "a draft model keeps what it read in place of what must come",
        "drafters.model:ModelDrafter.observe",
        "$read = torch.minimum($read, ($valid & ($tokens2 == $tokens))[:, 1:].cumprod(-1).sum(-1))",
        "pass",
        (f"{HOST_CONSTRAINTS}::test_a_draft_model_keeps_nothing_of_tokens_that_it_did_not_read",),
    ),
    Mutant(
        "what must come is drafted beyond the limit of its row",
        "constraints.host:_room",
        "$room if $num_draft_tokens is None else min($room, $num_draft_tokens)",
        "$room",
        (f"{HOST_CONSTRAINTS}::test_what_must_come_is_drafted_within_the_limits_of_the_row",),
    ),
    Mutant(
        "what must come counts as drawn",
        "constraints.host:HostConstraints._with_forced",
        "($node > 0) & ($node <= $number)",
        "tree.tokens[index[:, 0]] != torch.tensor([self._drafts[row].tokens for row in forced])",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "draft probabilities are not masked",
        "verifiers.recursive:Recursive.__call__",
        "$tree = $masked($tree, scores)",
        "pass",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "a row that is left without a token does not fail",
        "core.batch:Batch.extend",
        "self._mark_failed($outcome, $mask)",
        "pass",
        (GRAMMARS,),
    ),
)
