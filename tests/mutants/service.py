"""Mutants of what users call: requests, stop strings, the scheduler."""

from tests.mutants.mutant import FORKS, SCHEDULER, SEEDS, STATISTICS, STOPS, Mutant

MUTANTS = (
    Mutant(
        "the samples of a prompt share their noise",
        "api/requests.py",
        "split_seed(base, first + at)",
        "split_seed(base, first)",
        (SEEDS.format("one_seed_is_split_over_prompts_and_samples"),),
    ),
    Mutant(
        "prompts without seeds share their noise",
        "api/requests.py",
        "first = count if shared or option.seed is None else 0",
        "first = count if shared else 0",
        (SEEDS.format("without_a_seed_no_two_texts_of_two_calls_share_their_noise"),),
    ),
    Mutant(
        "a stop string ends the text with the step",
        "api/continuation.py",
        "                self._trim = (len(gain.tokens), gain.num_accepted, at + 1)\n                break",
        "                self._trim = (len(gain.tokens), gain.num_accepted, at + 1)",
        (STOPS,),
    ),
    Mutant(
        "what a stop string cuts is counted",
        "api/continuation.py",
        "if self._trim is None:",
        "if self._trim is not False:",
        (STOPS,),
    ),
    Mutant(
        "a stop string counts one token before min_tokens",
        "api/continuation.py",
        "armed = len(self._tokens) > self.params.min_tokens\n        stopped",
        "armed = len(self._tokens) >= self.params.min_tokens\n        stopped",
        (f"{STOPS}::test_min_tokens_hold_for_stop_strings",),
    ),
    Mutant(
        "the beginning of a stop string is shown",
        "text/stops.py",
        "shown = len(pending) - state.length",
        "shown = len(pending)",
        (STOPS,),
    ),
    Mutant(
        "a cancelled row runs on",
        "engine/scheduler.py",
        "        self.decoder.release([job.row])\n        del self._running",
        "        del self._running",
        (SCHEDULER,),
    ),
    Mutant(
        "an interrupted admission loses its requests",
        "engine/scheduler.py",
        "self._waiting.extendleft(reversed(left))",
        "del left",
        (f"{SCHEDULER}::test_an_interrupted_admission_loses_no_request",),
    ),
    Mutant(
        "a row whose admission failed serves as a prefix",
        "engine/scheduler.py",
        "if p.prefix is not None and self._held[p.prefix.row] else None",
        "if p.prefix is not None else None",
        (f"{SCHEDULER}::test_nobody_copies_from_a_row_whose_admission_failed",),
    ),
    Mutant(
        "a row is taken to hold less than it does",
        "engine/scheduler.py",
        "self._held[job.row].extend(report.tokens[job.row])",
        "self._held[job.row].extend(report.tokens[job.row][:-1])",
        (f"{FORKS}::test_a_conversation_goes_on_from_what_its_row_holds",),
    ),
    Mutant(
        "a row is taken to hold its newest token",
        "engine/scheduler.py",
        "text[:-1] for row, text in self._held.items()",
        "text for row, text in self._held.items()",
        (f"{FORKS}::test_a_conversation_goes_on_from_what_its_row_holds",),
    ),
    Mutant(
        "steps are taken plainly where drafts decide the tokens",
        "api/engine.py",
        "watched = isinstance(count, int) and rule.same_tokens and",
        "watched = isinstance(count, int) and",
        (f"{STATISTICS}::test_no_plain_steps_under",),
    ),
)
