"""Mutants of the trainer: what is minimised, what is shared among processes, what is kept."""

from tests.mutants.mutant import Mutant

TASKS, TRAINER, BREAKS = (f"tests/train/test_{name}.py" for name in ("tasks", "trainer", "breaks"))
LOSSES, VALIDATION = "tests/train/test_losses.py", "tests/train/test_validation.py"
REGENERATE = "tests/train/test_regenerate.py"

MUTANTS = (
    Mutant(
        "the mixture's share has a gradient",
        "train/losses.py",
        "torch.exp(-ETA * laws.acceptance.detach())",
        "torch.exp(-ETA * laws.acceptance)",
        (LOSSES,),
    ),
    Mutant(
        "divergence the other way round",
        "train/losses.py",
        "F.kl_div(laws.own, laws.wanted, log_target=True",
        "F.kl_div(laws.wanted, laws.own, log_target=True",
        (LOSSES,),
    ),
    Mutant(
        "every chunk is compared with the first rows of the target",
        "train/losses.py",
        "target = wanted[index].float()",
        "target = wanted[: len(index)].float()",
        (LOSSES, TASKS),
    ),
    Mutant(
        "a draft is held against the law one token on",
        "train/terms.py",
        "(position + begins).flatten(), text)",
        "((position + 1).clamp(max=length - 1) + begins).flatten(), text)",
        (TASKS,),
    ),
    Mutant(
        "the first token of a text is predicted from the one before it",
        "train/terms.py",
        "learned & (batch.segment[:, 1:] == batch.segment[:, :-1])",
        "learned",
        (TASKS,),
    ),
    Mutant(
        "what is not learned counts for heads",
        "train/tasks.py",
        "weight = learned_of(batch).gather(1, position.flatten(1)).view_as(position).float()",
        "weight = torch.ones_like(position).float()",
        (TASKS,),
    ),
    Mutant(
        "detached heads are not",
        "train/tasks.py",
        "hidden[tap].detach() if part.detach else hidden[tap]",
        "hidden[tap]",
        (TASKS,),
    ),
    Mutant(
        "all rows draw the same anchors",
        "train/tasks.py",
        "self.step), self.first_row + row))",
        "self.step), row))",
        (TASKS,),
    ),
    Mutant(
        "the same anchors in every step",
        "train/tasks.py",
        "split_seed(split_seed(self.seed, self.step), self.first_row + row)",
        "split_seed(self.seed, self.first_row + row)",
        (TASKS,),
    ),
    Mutant(
        "the mean of a part instead of the whole batch",
        "train/trainer.py",
        "(result.loss * (self.strategy.world / max(learned, 1))).backward()",
        "(result.loss / num_learned(batch)).backward()",
        (TRAINER,),
    ),
    Mutant(
        "the mean of weights is not kept",
        "train/trainer.py",
        'tensors.update({f"average.{name}": tensor for name, tensor in self.average.tensors.items()})',
        "pass",
        (TRAINER,),
    ),
    Mutant(
        "the last weights instead of the best",
        "train/trainer.py",
        "        self.best.load(task.trained())\n",
        "",
        (TRAINER,),
    ),
    Mutant(
        "the worst weights are kept",
        "train/kept.py",
        "value <= self.value",
        "value >= self.value",
        (TRAINER,),
    ),
    Mutant(
        "a checkpoint is written in place",
        "train/checkpoints.py",
        'part = path.with_suffix(".part")',
        "part = path",
        (BREAKS,),
    ),
    Mutant(
        "lines of repeated steps stay in the log",
        "train/loggers.py",
        "if _step_of(line) <= step]",
        "]",
        (TRAINER,),
    ),
    Mutant(
        "a full disk is not noticed in time",
        "train/checkpoints.py",
        "shutil.rmtree(part, ignore_errors=True)\n            last",
        "shutil.rmtree(self.folder, ignore_errors=True)\n            last",
        (BREAKS,),
    ),
    Mutant(
        "looping texts count",
        "train/acceptance.py",
        "if not is_looping(text.tolist())]",
        "]",
        (VALIDATION,),
    ),
    Mutant(
        "all prompts have one seed",
        "train/acceptance.py",
        "seed=split_seed(sampling.seed, index)",
        "seed=sampling.seed",
        (REGENERATE,),
    ),
)
