"""Mutants of LayerSkip's recipe: what is skipped, what an exit weighs, and when it is learned."""

from tests.mutants.mutant import Mutant

SKIP, RUNS = "tests/train/test_layer_skip.py", "tests/train/test_layer_skip_run.py"

MUTANTS = (
    Mutant(
        "the first layer is skipped most often",
        "train.tasks.layer_skip:LayerSkip.skip_probs",
        "torch.arange($num_layers, dtype=torch.float64)",
        "torch.arange($num_layers - 1, -1, -1, dtype=torch.float64)",
        (SKIP,),
    ),
    Mutant(
        "chances do not grow with the steps",
        "train.tasks.layer_skip:LayerSkip._last_skip_prob",
        "$rise if $ramp else 1.0",
        "1.0",
        (SKIP,),
    ),
    Mutant(
        "weights of exits are not normalised",
        "train.tasks.layer_skip:LayerSkip.weights",
        "$weight / total",
        "$weight",
        (SKIP,),
    ),
    Mutant(
        "all exits have one weight",
        "train.tasks.layer_skip:LayerSkip.weights",
        "$scale * $layer * ($layer + 1) / 2",
        "$scale",
        (SKIP,),
    ),
    Mutant(
        "layers are skipped in evaluation",
        "train.tasks.models:trained_forward",
        "$layer_skip is not None and $training",
        "$layer_skip is not None",
        (SKIP,),
    ),
    Mutant(
        "the rotation of exits does not advance",
        "train.tasks.layer_skip:_rotational",
        "$layer % $every == $step % $every",
        "$layer % $every == 0",
        (SKIP,),
    ),
    Mutant(
        "a gradual curriculum goes from the first exit to the deepest",
        "train.tasks.layer_skip:_gradual",
        "$layer >= $num_layers - 1 - 2 * $num_layers * $step // $num_steps",
        "$num_layers - 2 - $layer >= $num_layers - 1 - 2 * $num_layers * $step // $num_steps",
        (SKIP,),
    ),
    Mutant(
        "a gradual curriculum takes all steps",
        "train.tasks.layer_skip:_gradual",
        "2 * $num_layers",
        "$num_layers",
        (SKIP,),
    ),
    Mutant(
        "all rows of a step skip the same layers",
        "train.tasks.models:trained_forward",
        "[$generator($row) for $row in range(len($tokens))]",
        "[$generator(0) for $row in range(len($tokens))]",
        (SKIP,),
    ),
    Mutant(
        "what a step skips is what a head draws",
        "train.tasks.models:trained_forward",
        "$for_target()",
        "randomness",
        (SKIP,),
    ),
    Mutant(
        "a skipped layer stops the stream",
        "models.native.decoder:DecoderLM._run",
        "before.view($shape)",
        "torch.zeros_like(before.view($shape))",
        (SKIP,),
    ),
    Mutant(
        "an exit is read without the target's norm",
        "train.tasks.layer_skip:_exit_loss",
        "$scored($hidden)",
        "$scored($hidden) if model.head is None else model.head($hidden)",
        (SKIP,),
    ),
    Mutant(
        "an exit's loss ends at the stream",
        "train.tasks.layer_skip:LayerSkip.loss",
        "$recomputed($exit_loss, $model, $hidden[$tap], $batch)",
        "$recomputed($exit_loss, $model, $hidden[$tap].detach(), $batch)",
        (SKIP,),
    ),
    Mutant(
        "a head of weight zero is learned for",
        "train.tasks.draft_heads:DraftHeadTask.__init__",
        "($part for $part in $heads if $weight > 0)",
        "($part for $part in $heads)",
        (SKIP,),
    ),
    Mutant(
        "a head of weight zero may have weights that nothing trains",
        "train.setup:build_head",
        "$weight == 0",
        "$weight < 0",
        (RUNS,),
    ),
)
