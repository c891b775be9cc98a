"""Mutants of the host lane: rules at every node, and what they do to drafts."""

from tests.mutants.mutant import Mutant

LAWS = "tests/constraints/test_laws.py"
LANE = "tests/constraints/test_lane.py"
GRAMMARS = "tests/constraints/test_grammars.py"
PROCESSORS = "tests/constraints/test_processors.py"

MUTANTS = (
    Mutant(
        "a node's mask is that of its parent",
        "constraints/lane.py",
        "allowed[place, nodes] = mask",
        "allowed[place, nodes] = mask[[nodes.index(max(self._drafts[row].parents[node], 0)) for node in nodes]]",
        (LAWS,),
    ),
    Mutant(
        "a grammar is not rolled back after a draft",
        "constraints/walk.py",
        "        _retreat(grammars, len(path) - 1)",
        "        pass",
        (LANE,),
    ),
    Mutant(
        "a grammar is rolled back by one token where a branch ends",
        "constraints/walk.py",
        "            _retreat(grammars, back)\n",
        "            _retreat(grammars, 1)\n",
        (LANE,),
    ),
    Mutant(
        "a law keeps what was pruned from its draft",
        "constraints/lane.py",
        "own = laws[rows] * kept",
        "own = laws[rows] * (kept | True)",
        (LAWS,),
    ),
    Mutant(
        "a law loses what is forbidden after another node",
        "constraints/lane.py",
        "parent.scatter_(1, torch.where(law >= 0, law, number), parents)",
        "parent.scatter_(1, torch.where(law >= 0, law, number), torch.zeros_like(parents))",
        (LAWS,),
    ),
    Mutant(
        "below a forbidden node drafts go on",
        "constraints/walk.py",
        "            waiting = waiting + children[node]\n",
        "        waiting = waiting + children[node]\n",
        (LANE,),
    ),
    Mutant(
        "processors see the text without its draft",
        "constraints/lane.py",
        "way[: draft.depth(node)]",
        "way[:0]",
        (PROCESSORS,),
    ),
    Mutant(
        "processors are called for nodes that are not valid",
        "constraints/lane.py",
        "                    if valid:\n",
        "                    if valid or node:\n",
        (f"{PROCESSORS}::test_a_processor_is_called_once_for_every_valid_node",),
    ),
    Mutant(
        "a processor writes into the ids that the next one sees",
        "constraints/lane.py",
        "processor.process(tokens.clone(), logits.clone())",
        "processor.process(tokens, logits.clone())",
        (PROCESSORS,),
    ),
    Mutant(
        "tokens of a step without its rules are told",
        "engine/scheduler.py",
        "            if job.row in flight.failures:",
        "            if job.row in flight.failures and report.finish[job.row] is not Finish.RUNNING:",
        (LANE,),
    ),
    Mutant(
        "steps with rules are recorded",
        "engine/graphs.py",
        "self._decoder.batch.wants_logprobs or self._decoder.lane.busy",
        "self._decoder.batch.wants_logprobs",
        (f"{LANE}::test_steps_with_rules_are_called_and_others_replayed",),
    ),
    Mutant(
        "a released row keeps its rules",
        "decode.py",
        "        self.lane.release(rows)\n",
        "",
        (LANE,),
    ),
    Mutant(
        "the end may follow what is not complete",
        "constraints/grammar.py",
        "mask[list(self._ends)] = may_end",
        "mask[list(self._ends)] = True",
        (GRAMMARS,),
    ),
    Mutant(
        "an end that was drafted is not taken back",
        "constraints/grammar.py",
        "            self._ended = False\n            count -= 1\n",
        "            count -= 1\n",
        (GRAMMARS,),
    ),
    Mutant(
        "a draft model keeps what it read in place of what must come",
        "drafters/model.py",
        "read = torch.minimum(read, (valid & (tokens == tree.tokens))[:, 1:].cumprod(-1).sum(-1))",
        "pass",
        (f"{LANE}::test_a_draft_model_keeps_nothing_of_tokens_that_it_did_not_read",),
    ),
    Mutant(
        "what must come is drafted beyond the limit of its row",
        "constraints/lane.py",
        "return room if request.num_draft_tokens is None else min(room, request.num_draft_tokens)",
        "return room",
        (f"{LANE}::test_what_must_come_is_drafted_within_the_limits_of_the_row",),
    ),
    Mutant(
        "what must come counts as drawn",
        "constraints/lane.py",
        "fixed[index[:, 0]] = (node > 0) & (node <= number)",
        "fixed[index[:, 0]] = tree.tokens[index[:, 0]] != torch.tensor([self._drafts[row].tokens for row in forced])",
        (LAWS,),
    ),
)
