"""Mistakes in guided rows."""

from tests.mutants.mutant import Mutant

GUIDED = "tests/conformance/test_guidance.py"

MUTANTS = (
    Mutant(
        "a negative prompt's last token is read in every step",
        "models.guided:GuidedView.commit",
        "self.fresh.logical_and_($num_committed == 0)",
        "pass",
        (GUIDED,),
    ),
    Mutant(
        "a negative prompt's row begins with the root of the prompt's own",
        "models.guided:GuidedLM._both",
        "torch.where($fresh, $last, $tokens[:, 0])",
        "$tokens[:, 0]",
        (GUIDED,),
    ),
    Mutant(
        "guidance forgets the logits of the negative prompt",
        "core.guidance:GuidanceState.combine",
        "$scale * ($own - $other) + $other",
        "$scale * ($own - $other)",
        (GUIDED,),
    ),
)
