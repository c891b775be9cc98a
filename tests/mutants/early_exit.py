"""Mutants of leaving the target early: the stem, what the head has yet to read, what verification is told."""

from tests.mutants.mutant import Mutant

DRAFTER, FEATURES, HEAD = "drafters/early_exit.py", "drafters/features.py", "heads/early_exit.py"
TESTS = "tests/drafters/test_early_exit.py"
STATES = "tests/drafters/test_early_exit_states.py"
HEADS = "tests/heads/test_early_exit.py"
RESUMED = f"{STATES}::test_verification_that_goes_on_gives_what_a_whole_one_gives"
TRAINED = f"{STATES}::test_what_is_drafted_with_is_what_is_trained"
PAUSES = f"{TESTS}::test_catches_up_after_pauses"

MUTANTS = (
    Mutant(
        "the stem is off by one layer",
        DRAFTER,
        "layers=range(self.head.options.exit_layer)",
        "layers=range(1, 1 + self.head.options.exit_layer)",
        (f"{TESTS}::test_draft_equal_to_target_takes_the_fewest_steps",),
    ),
    Mutant(
        "what was accepted is not kept for the head",
        DRAFTER,
        "self.unread.add(states, first, num)",
        "self.unread.add(states, first, first)",
        (f"{TESTS}::test_draft_equal_to_target_takes_the_fewest_steps",),
    ),
    Mutant(
        "the root is kept for a head that has read it",
        DRAFTER,
        "torch.minimum((self.cache.length + self.unread.count - root).clamp(min=0), num)",
        "torch.zeros_like(num)",
        (f"{STATES}::test_the_heads_cache_is_of_what_the_target_said_of_verified_tokens",),
    ),
    Mutant(
        "the head is asked as if it were never behind",
        DRAFTER,
        "self.lag = max(self.depth, self.lag + 1 + tree.max_depth)",
        "self.lag = self.depth",
        (PAUSES,),
    ),
    Mutant(
        "what has come together is dropped when there is no more room",
        DRAFTER,
        "read_hidden(self.lm, self.cache, self.unread.states[:, :-1], self.unread.count)",
        "self.cache.length",
        (PAUSES,),
    ),
    Mutant(
        "states are kept over those of the step before",
        FEATURES,
        "at = self.count[:, None] + index - first[:, None]",
        "at = index - first[:, None]",
        (PAUSES,),
    ),
    Mutant(
        "the newest state stands before those that are unread",
        FEATURES,
        "torch.where((index == self.count[:, None])[..., None], newest, self.states[:, : size + 1])",
        "torch.where((index == 0)[..., None], newest, self.states[:, : size + 1].roll(1, dims=1))",
        (f"{TESTS}::test_draft_equal_to_target_takes_the_fewest_steps",),
    ),
    Mutant(
        "states of the draft's end instead of the accepted path",
        FEATURES,
        "nodes = F.pad(outcome.path, (1, 0)).clamp(min=0)  # the root is node 0",
        "nodes = torch.arange(1 + outcome.path.shape[1], device=hidden.device).expand(len(hidden), -1)",
        (f"{TESTS}::test_a_tree_by_the_target_itself_takes_the_fewest_steps",),
    ),
    Mutant(
        "the stem's slots are not renumbered",
        DRAFTER,
        "self.stem.permute(torch.where(place > 0, place, -1))",
        "pass",
        (RESUMED,),
    ),
    Mutant(
        "states in the order in which they were read",
        DRAFTER,
        "known.gather(1, place[..., None].expand(-1, -1, known.shape[-1]))",
        "F.pad(known, (0, 0, 0, max(0, tree.num_nodes - known.shape[1])))[:, : tree.num_nodes]",
        (RESUMED,),
    ),
    Mutant(
        "leaves are said to have passed the stem",
        DRAFTER,
        "ready = F.pad(place[:, 1:] > 0, (1, 0), value=True)",
        "ready = torch.ones_like(tree.valid)",
        (RESUMED,),
    ),
    Mutant(
        "one leaf more is said to have passed the stem",
        DRAFTER,
        "return next(node for node in range(len(parents)) if node not in parents)",
        "return 1 + next(node for node in range(len(parents)) if node not in parents)",
        (RESUMED,),
    ),
    Mutant(
        "the head writes into the target's cache",
        DRAFTER,
        "self.cache = self.lm.new_cache(setting.rows, setting.max_length + num_expanded).view()",
        "self.cache = setting.cache.apart(layers=range(self.lm.num_layers))",
        (f"{TESTS}::test_the_texts_are_the_references_whatever_the_head_says",),
    ),
    Mutant(
        "a fork forgets what the source's head has yet to read",
        DRAFTER,
        "if admission.longest_forked:",
        "if admission.longest_forked < 0:",
        (f"{STATES}::test_a_fork_of_a_row_whose_head_has_fallen_behind", TRAINED),
    ),
    Mutant(
        "a fork reads what its own row had yet to read",
        DRAFTER,
        "self.unread.states[admission.source, :-1]",
        "self.unread.states[admission.rows, :-1]",
        (f"{STATES}::test_a_fork_of_a_row_whose_head_has_fallen_behind", TRAINED),
    ),
    Mutant(
        "a step that is done again reads the root twice",
        DRAFTER,
        "self.cache.truncate(torch.minimum(self.cache.length, batch.length - 1 - self.unread.count))",
        "pass",
        (f"{STATES}::test_a_step_that_is_cut_off_before_it_is_decided_is_done_again",),
    ),
    Mutant(
        "what is recycled is of the token itself",
        DRAFTER,
        "(at - 1).clamp(0, self.past.shape[1] - 1)",
        "at.clamp(0, self.past.shape[1] - 1)",
        (TRAINED,),
    ),
    Mutant(
        "what is recycled is of another row",
        DRAFTER,
        "before = self.past[rows[:, None], ",
        "before = self.past[rows[:, None] * 0, ",
        (TRAINED,),
    ),
    Mutant(
        "a fork does not take what is recycled",
        DRAFTER,
        "self.past[admission.rows, :longest] = self.past[admission.source, :longest]",
        "pass",
        (TRAINED,),
    ),
    Mutant(
        "a draft does not age",
        DRAFTER,
        "age = torch.arange(depth + 1, device=batch.device).expand(batch.rows, -1)",
        "age = torch.zeros(batch.rows, depth + 1, dtype=torch.int64, device=batch.device)",
        (TRAINED,),
    ),
    Mutant(
        "training sees what the target says of tokens not yet verified",
        HEAD,
        "source = torch.minimum(position, crop) - 1",
        "source = position - 1",
        (HEADS,),
    ),
    Mutant(
        "a loss that moves the target through what is recycled",
        HEAD,
        "hidden[self.num_layers].detach()",
        "hidden[self.num_layers]",
        (HEADS,),
    ),
)
