"""Mutants of the trainer: what is minimised, what is shared among processes, and what is saved."""

from tests.mutants.mutant import Mutant

TASKS, TRAINER = "tests/train/test_tasks.py", "tests/train/test_trainer.py"
BREAKS = "tests/train/test_interruptions.py"
LOSSES, VALIDATION = "tests/train/test_losses.py", "tests/train/test_validation.py"
REGENERATE = "tests/train/test_regenerate.py"

MUTANTS = (
    Mutant(
        "the mixture's share has a gradient",
        "train.tasks.losses:acceptance_mixture",
        "$acceptance.detach()",
        "$acceptance",
        (LOSSES,),
    ),
    Mutant(
        "divergence the other way round",
        "train.tasks.losses:kl_divergence",
        'F.kl_div($own, $wanted, log_target=True, reduction="none")',
        'F.kl_div($wanted, $own, log_target=True, reduction="none")',
        (LOSSES,),
    ),
    Mutant(
        "every chunk is compared with the first rows of the target",
        "train.tasks.losses:DistillationLoss._chunk_loss",
        "$wanted[$index]",
        "$wanted[:len($index)]",
        (LOSSES, TASKS),
    ),
    Mutant(
        "a draft is compared with the distribution one token later",
        "train.tasks.terms:distillation_term",
        "$position + $begins",
        "($position + 1).clamp(max=length - 1) + $begins",
        (TASKS,),
    ),
    Mutant(
        "the first token of a sequence is predicted from the previous sequence",
        "train.tasks.terms:learned_mask",
        "$learned & ($segment[:, 1:] == $segment[:, :-1])",
        "$learned",
        (TASKS,),
    ),
    Mutant(
        "what is not learned counts for heads",
        "train.tasks.draft_heads:DraftHeadTask._head_term",
        "$learned_of($batch).gather(1, $position.flatten(1)).view_as",
        "torch.ones_like",
        (TASKS,),
    ),
    Mutant(
        "detached heads are not",
        "train.tasks.draft_heads:DraftHeadTask.forward",
        "$hidden[$tap].detach() if $part.detach else $hidden[$tap]",
        "$hidden[$tap]",
        (TASKS,),
    ),
    Mutant(
        "all rows draw the same anchors",
        "train.tasks.base:StepRandomness.generator",
        "$first_row + $row",
        "$row",
        (TASKS,),
    ),
    Mutant(
        "the same anchors in every step",
        "train.tasks.base:StepRandomness.generator",
        "$split_seed($seed, self.$step)",
        "$seed",
        (TASKS,),
    ),
    Mutant(
        "the mean of a part instead of the whole batch",
        "train.loop.trainer:Trainer._backward",
        "$loss * ($world / max($learned, 1))",
        "$loss / num_learned(batch)",
        (TRAINER,),
    ),
    Mutant(
        "averaged weights are not saved",
        "train.loop.trainer:Trainer._state",
        '$tensors2.update({f"average.{$name}": $tensor for $name, $tensor in $tensors.items()})',
        "pass",
        (TRAINER,),
    ),
    Mutant(
        "the last weights instead of the best",
        "train.loop.trainer:Trainer.finished",
        "$best.load($trained())",
        "",
        (TRAINER,),
    ),
    Mutant(
        "the worst weights are saved as best",
        "train.loop.best_weights:BestWeights.update",
        "$value2 <= $value",
        "$value2 >= $value",
        (TRAINER,),
    ),
    Mutant(
        "a checkpoint is written in place",
        "train.loop.checkpoints:Checkpoints.write",
        '$path.with_suffix(".part")',
        "$path",
        (BREAKS,),
    ),
    Mutant(
        "lines of repeated steps stay in the log",
        "train.loop.loggers:JsonLines.begin",
        '[$line for $line in $path.read_text($encoding="utf-8").splitlines() if $step_of($line) <= $step]',
        '[$line for $line in $path.read_text($encoding="utf-8").splitlines()]',
        (TRAINER,),
    ),
    Mutant(
        "a full disk is not noticed in time",
        "train.loop.checkpoints:Checkpoints.write",
        "shutil.rmtree($part, ignore_errors=True)",
        "shutil.rmtree(self.folder, ignore_errors=True)",
        (BREAKS,),
    ),
    Mutant(
        "looping outputs are counted",
        "train.acceptance:measure_acceptance",
        "[$row for $row, $sequence in enumerate($sequences) if not $is_looping($sequence.tolist())]",
        "[$row for $row, $sequence in enumerate($sequences)]",
        (VALIDATION,),
    ),
    Mutant(
        "all prompts have one seed",
        "train.acceptance:measure_acceptance",
        "split_seed($seed, $index)",
        "$seed",
        (REGENERATE,),
    ),
)
