"""Mistakes in reading prompts, in driving steps, and in what is learned from their results."""

from tests.mutants.mutant import RUNNER, Mutant

WATCH = "tests/engine/test_watch.py"

MUTANTS = (
    Mutant(
        "a row takes part in steps before its prompt is read",
        "core.batch:Batch.admit",
        "self.active[$index] = $active",
        "self.active[$index] = True",
        (RUNNER,),
    ),
    Mutant(
        "a chunk of a long prompt is skipped",
        "models.prefill:Prefill.read",
        "self._left -= $size",
        "self._left -= 2 * $size",
        (RUNNER,),
    ),
    Mutant(
        "prompt log-probabilities are of the chunk before",
        "models.scoring:PromptScorer.__call__",
        "self._read += $size",
        "self._read += $size if len(self._pieces) > 1 else 0",
        (RUNNER,),
    ),
    Mutant(
        "a sequence is extended by the request that had its row before",
        "engine.scheduler:Scheduler.advance",
        "$take($step, self._rows($states))",
        "$take($step, [row for row in $states if row in self._running])",
        (RUNNER,),
    ),
    Mutant(
        "results are overwritten by the next step's before they are read",
        "engine.readers:AsyncReader.__init__",
        "range(2)",
        "range(1)",
        (RUNNER,),
    ),
    Mutant(
        "recorded steps go on using a drafter that failed",
        "engine.runner:Runner._drop_drafter",
        "self.recorder.forget()",
        "pass",
        (RUNNER,),
    ),
    Mutant(
        "a replayed step leaves the drafter's host state as it was",
        "engine.graphs:RecordedStep.replay",
        "$resume(self.after)",
        "pass",
        ("tests/engine/test_graphs.py",),
    ),
    Mutant(
        "measured steps count as drafted ones",
        "engine.watch:Watch.observe",
        "if $measured:\n    if $turn == $last:\n        $append($seconds)\nelif $warm:\n    *$count",
        "if $measured and $turn == $last:\n    $append($seconds)\nif $warm:\n    *$count",
        (WATCH,),
    ),
)
