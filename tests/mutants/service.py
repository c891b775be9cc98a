"""Mutants of what users call: requests, stop strings, the scheduler."""

from tests.mutants.mutant import FORKS, GENERATE, RUNNER, SCHEDULER, STATISTICS, STOPS, Mutant

MUTANTS = (
    Mutant(
        "the samples of a prompt share their noise",
        "api.requests:prepare",
        "$first + $at",
        "$first",
        (f"{GENERATE}::test_one_seed_is_split_over_prompts_and_samples",),
    ),
    Mutant(
        "prompts without seeds share their noise",
        "api.requests:prepare",
        "$shared or $seed is None",
        "$shared",
        (f"{GENERATE}::test_outputs_without_a_seed_never_share_noise",),
    ),
    Mutant(
        "a stop string cuts at the end of the step",
        "api.completion:Completion.take",
        "break",
        "",
        (STOPS,),
    ),
    Mutant(
        "tokens after a stop string are counted",
        "api.completion:Completion._clip",
        "$trim is None",
        "$trim is not False",
        (STOPS,),
    ),
    Mutant(
        "a stop string counts one token before min_tokens",
        "api.completion:Completion._decode",
        "self._num > $min_tokens",
        "self._num >= $min_tokens",
        (f"{STOPS}::test_min_tokens_hold_for_stop_strings",),
    ),
    Mutant(
        "the beginning of a stop string is shown",
        "text.stops:StopStrings.push",
        "len($pending) - $length",
        "len($pending)",
        (STOPS,),
    ),
    Mutant(
        "a cancelled row runs on",
        "engine.scheduler:Scheduler._leave",
        "$release([$row])",
        "",
        (SCHEDULER,),
    ),
    Mutant(
        "an interrupted admission loses its requests",
        "engine.scheduler:Scheduler._abandon",
        "$waiting.appendleft($state)",
        "pass",
        (f"{SCHEDULER}::test_an_interrupted_admission_loses_no_request",),
    ),
    Mutant(
        "a row whose admission failed serves as a prefix",
        "engine.runner:Runner.begin",
        "$sequences.pop($row, None)",
        "pass",
        (RUNNER,),
    ),
    Mutant(
        "a row is taken to hold less than it does",
        "engine.prefixes:Source.common",
        "min($first, $second) - 1",
        "min($first, $second) - 2",
        (f"{FORKS}::test_a_conversation_goes_on_from_what_its_row_holds",),
    ),
    Mutant(
        "a row is taken to hold its newest token",
        "engine.prefixes:Source.common",
        "min($first, $second) - 1",
        "min($first, $second)",
        (f"{FORKS}::test_a_conversation_goes_on_from_what_its_row_holds",),
    ),
    Mutant(
        "steps are taken plainly where drafts decide the tokens",
        "api.engine:Engine.__init__",
        "isinstance($count, int) and $same_tokens and (not isinstance($drafter, $NoDrafter))",
        "isinstance($count, int) and (not isinstance($drafter, $NoDrafter))",
        (f"{STATISTICS}::test_no_measuring_steps_under",),
    ),
)
