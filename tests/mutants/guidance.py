"""Mistakes in guided rows."""

from tests.mutants.mutant import Mutant

GUIDED = "tests/conformance/test_guidance.py"

MUTANTS = (
    Mutant(
        "a row that guides keeps tokens of its own",
        "core/guidance.py",
        "next=self.copy(outcome.next),",
        "next=outcome.next,",
        (GUIDED,),
    ),
    Mutant(
        "a row that guides reads the root of the guided one",
        "core/guidance.py",
        'tokens = torch.cat((root[:, None], rows["tokens"][:, 1:]), dim=1)',
        'tokens = rows["tokens"]',
        (GUIDED,),
    ),
    Mutant(
        "guidance forgets the other stream's law",
        "core/guidance.py",
        "scale * (own - other) + other",
        "scale * (own - other)",
        (GUIDED,),
    ),
)
