"""The options of every command, one file per command, and the code that runs it. Loads no torch."""

from paceline.cli.commands.audit import Audit
from paceline.cli.commands.bench import Bench, BenchReport
from paceline.cli.commands.data import DataFeatures, DataPrepare, DataRegenerate
from paceline.cli.commands.demo import Demo
from paceline.cli.commands.generate import Generate
from paceline.cli.commands.inspect import Inspect
from paceline.cli.commands.option_table import Options
from paceline.cli.commands.roofline import Roofline
from paceline.cli.commands.score import Score
from paceline.cli.commands.train import Train
from paceline.cli.commands.tree import Tree

# Name to options, in the order of --help.
COMMANDS: dict[str, type] = {
    "demo": Demo,
    "generate": Generate,
    "score": Score,
    "inspect": Inspect,
    "options": Options,
    "roofline": Roofline,
    "audit": Audit,
    "tree": Tree,
    "train": Train,
    "bench": Bench,
    "bench report": BenchReport,
    "data prepare": DataPrepare,
    "data regenerate": DataRegenerate,
    "data features": DataFeatures,
}

# The function that takes the options and returns the exit code, as "module:function".
RUNNERS: dict[type, str] = {
    Demo: "paceline.cli.demo:demo",
    Generate: "paceline.cli.generate:generate",
    Score: "paceline.cli.score:score_texts",
    Inspect: "paceline.cli.inspect:inspect_model",
    Options: "paceline.cli.option_table:print_options",
    Roofline: "paceline.cli.roofline:roofline",
    Audit: "paceline.cli.audit:run_audit",
    Tree: "paceline.cli.tree:find_tree",
    Train: "paceline.cli.train:train",
    Bench: "paceline.cli.bench:run_bench",
    BenchReport: "paceline.cli.bench_report:report",
    DataPrepare: "paceline.cli.data_prepare:prepare",
    DataRegenerate: "paceline.cli.data_regenerate:regenerate",
    DataFeatures: "paceline.cli.data_features:compute_features",
}
