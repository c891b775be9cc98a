"""The commands by name, and the exit codes they end with. Imports none of them."""

from paceline.core.registry import Registry

EXIT_OK, EXIT_DIFFERENT, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 the demo or an audit found a difference, or some prompts failed; 2 bad input, or a file "
    "that cannot be read or written; 130 interrupted (what there was is printed or kept)."
)

COMMANDS = Registry(
    "command",
    {
        "demo": "paceline.cli.demo:Demo",
        "generate": "paceline.cli.generate:Generate",
        "score": "paceline.cli.score:ScoreTexts",
        "inspect": "paceline.cli.inspect:Inspect",
        "options": "paceline.cli.option_table:OptionTable",
        "roofline": "paceline.cli.roofline:Roofline",
        "audit": "paceline.cli.audit:AuditModel",
        "tree": "paceline.cli.tree:Tree",
        "train": "paceline.cli.train:TrainModels",
    },
)
