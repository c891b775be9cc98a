"""The commands, one file each: the dataclass of its options, with ``run``. Loads no torch."""

from paceline.cli.command import Command
from paceline.cli.commands.advise import Advise
from paceline.cli.commands.audit import Audit
from paceline.cli.commands.batch_run import BatchRun
from paceline.cli.commands.bench import Bench
from paceline.cli.commands.bench_report import BenchReport
from paceline.cli.commands.chat import Chat
from paceline.cli.commands.convert import Convert
from paceline.cli.commands.data_features import DataFeatures
from paceline.cli.commands.data_prepare import DataPrepare
from paceline.cli.commands.data_regenerate import DataRegenerate
from paceline.cli.commands.datastore_build import DatastoreBuild
from paceline.cli.commands.datastore_inspect import DatastoreInspect
from paceline.cli.commands.demo import Demo
from paceline.cli.commands.export import Export
from paceline.cli.commands.generate import Generate
from paceline.cli.commands.inspect import Inspect
from paceline.cli.commands.options import Options
from paceline.cli.commands.roofline import Roofline
from paceline.cli.commands.score import Score
from paceline.cli.commands.serve import Serve
from paceline.cli.commands.skip_search import SkipSearch
from paceline.cli.commands.train import Train
from paceline.cli.commands.train_auto import TrainAuto
from paceline.cli.commands.train_report import TrainReport
from paceline.cli.commands.transcribe import Transcribe
from paceline.cli.commands.tree import Tree

# In the order of --help.
COMMANDS: dict[str, type[Command]] = {
    "demo": Demo,
    "generate": Generate,
    "chat": Chat,
    "serve": Serve,
    "batch run": BatchRun,
    "score": Score,
    "transcribe": Transcribe,
    "inspect": Inspect,
    "options": Options,
    "advise": Advise,
    "roofline": Roofline,
    "audit": Audit,
    "tree": Tree,
    "skip-search": SkipSearch,
    "train": Train,
    "train auto": TrainAuto,
    "train report": TrainReport,
    "convert": Convert,
    "export": Export,
    "bench": Bench,
    "bench report": BenchReport,
    "data prepare": DataPrepare,
    "data regenerate": DataRegenerate,
    "data features": DataFeatures,
    "datastore build": DatastoreBuild,
    "datastore inspect": DatastoreInspect,
}
