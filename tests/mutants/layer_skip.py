"""Mutants of LayerSkip's recipe: what is skipped, what an exit weighs, and when it is learned."""

from tests.mutants.mutant import Mutant

SKIP, RUNS = (f"tests/train/test_layer_skip{name}.py" for name in ("", "_run"))

MUTANTS = (
    Mutant(
        "the first layer is skipped most often",
        "train/layer_skip.py",
        "torch.arange(self.num_layers, dtype=torch.float64)",
        "torch.arange(self.num_layers - 1, -1, -1, dtype=torch.float64)",
        (SKIP,),
    ),
    Mutant(
        "chances do not grow with the steps",
        "train/layer_skip.py",
        "(rise if self.section.ramp else 1.0)",
        "1.0",
        (SKIP,),
    ),
    Mutant(
        "weights of exits are not normalised",
        "train/layer_skip.py",
        "{tap: weight / total for",
        "{tap: weight for",
        (SKIP,),
    ),
    Mutant(
        "all exits weigh alike",
        "train/layer_skip.py",
        "scale * layer * (layer + 1) / 2",
        "scale",
        (SKIP,),
    ),
    Mutant(
        "layers are skipped in evaluation",
        "train/tasks.py",
        "if layer_skip is not None and model.training:",
        "if layer_skip is not None:",
        (SKIP,),
    ),
    Mutant(
        "a rotation stands still",
        "train/layer_skip.py",
        "layer % recipe.section.every == step % recipe.section.every",
        "layer % recipe.section.every == 0",
        (SKIP,),
    ),
    Mutant(
        "a gradual curriculum goes from the first exit to the deepest",
        "train/layer_skip.py",
        "layer >= recipe.num_layers - 1 - 2",
        "recipe.num_layers - 2 - layer >= recipe.num_layers - 1 - 2",
        (SKIP,),
    ),
    Mutant(
        "a gradual curriculum takes all steps",
        "train/layer_skip.py",
        "- 2 * recipe.num_layers * step",
        "- recipe.num_layers * step",
        (SKIP,),
    ),
    Mutant(
        "all rows of a step skip the same layers",
        "train/tasks.py",
        "[own.generator(row) for row",
        "[own.generator(0) for row",
        (SKIP,),
    ),
    Mutant(
        "what a step skips is what a head draws",
        "train/tasks.py",
        "own = draws.apart()",
        "own = draws",
        (SKIP,),
    ),
    Mutant(
        "a skipped layer stops the stream",
        "models/decoder.py",
        "before.view(shape), x.view(shape))",
        "torch.zeros_like(before.view(shape)), x.view(shape))",
        (SKIP,),
    ),
    Mutant(
        "an exit is read without the target's norm",
        "train/layer_skip.py",
        "model.compute_logits(hidden)",
        "model.compute_logits(hidden) if model.head is None else model.head(hidden)",
        (SKIP,),
    ),
    Mutant(
        "an exit's loss ends at the stream",
        "train/layer_skip.py",
        "_entropy_after(model, hidden[tap], batch) for",
        "_entropy_after(model, hidden[tap].detach(), batch) for",
        (SKIP,),
    ),
    Mutant(
        "a head of weight zero is learned for",
        "train/tasks.py",
        "part for part in heads if part.weight > 0",
        "part for part in heads",
        (SKIP,),
    ),
    Mutant(
        "a head of weight zero may have weights that nothing trains",
        "train/setup.py",
        "if section.weight == 0 and head.own_state():",
        "if section.weight < 0 and head.own_state():",
        (RUNS,),
    ),
)
