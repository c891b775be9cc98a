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
    Mutant(
        "a step's tokens are not committed after the negative prompt",
        "models.guided:GuidedView.commit",
        "self.negative.commit($num, $path)",
        "pass",
        (GUIDED,),
    ),
    Mutant(
        "a negative prompt's last token is not read in the first step",
        "models.guided:GuidedLM._read_negative",
        "$fresh[$rows] = True",
        "$fresh[$rows] = False",
        (GUIDED,),
    ),
    Mutant(
        "a tree is committed after the negative prompt as if it were a chain",
        "models.guided:GuidedView.commit",
        "self.negative.commit($num, $path)",
        "self.negative.commit($num, None)",
        (GUIDED,),
    ),
    Mutant(
        "the negative prompt's row resumes as the prompt's own does",
        "models.guided:_only_first",
        "$ready.new_zeros($rows, $ready.shape[1])",
        "torch.cat(($ready[:1], $ready))",
        (GUIDED,),
    ),
)
