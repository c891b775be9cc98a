"""Mistakes in guided rows."""

from tests.mutants.mutant import Mutant

GUIDED = "tests/conformance/test_guidance.py"

MUTANTS = (
    Mutant(
        "an unconditional row keeps tokens of its own",
        "core.guidance:Guiding.copy_outcome",
        "self.copy($outcome.next)",
        "$outcome.next",
        (GUIDED,),
    ),
    Mutant(
        "an unconditional row reads the root of the guided one",
        "core.guidance:Guiding.copy_draft",
        'torch.cat(($root[:, None], $rows["tokens"][:, 1:]), dim=1)',
        '$rows["tokens"]',
        (GUIDED,),
    ),
    Mutant(
        "guidance forgets the unconditional logits",
        "core.guidance:Guiding.combine",
        "$scale * ($own - $other) + $other",
        "$scale * ($own - $other)",
        (GUIDED,),
    ),
)
