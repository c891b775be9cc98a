"""``paceline batch run``: answers the requests of a file, into a file that can be resumed."""

import sys
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from paceline.cli.command import EXIT_DIFFERENT, EXIT_OK, Command
from paceline.cli.console import open_notes
from paceline.cli.draft_options import DraftOptions
from paceline.cli.options import (
    AT_LEAST_1,
    MODEL,
    OUTPUT,
    POSITIONAL,
    BatchSize,
    LogLevel,
    ModelOptions,
    Overwrite,
    Profile,
    Quiet,
    check_profile,
)
from paceline.cli.serve_options import MaxModelLen

if TYPE_CHECKING:
    from paceline.cli.batch_file.on_ray import Cluster
    from paceline.serve.settings import Settings

RAY = Group("Ray", sort_key=7)
HELP = "Answer files of requests in OpenAI's batch format."


@dataclass(frozen=True, slots=True)
class BatchRun(Command):
    """Answer the requests of a file in OpenAI's batch format, as the server would.

    Each line of INPUT is {"custom_id", "method": "POST", "url", "body"}, where url is /v1/chat/completions,
    /v1/completions or /v1/responses. Each gives one line of OUTPUT, in order: {"id", "custom_id", "response", "error"}.
    An invalid request fails alone; a file in which a custom_id stands twice is refused before any work is done.

    After an interruption of any kind, the same command continues where it stopped.

    Examples:

        paceline batch run requests.jsonl answers.jsonl --model DIR --draft SMALL_DIR
        paceline batch run requests.jsonl answers.jsonl --model DIR --served-model-name gpt-4o-mini
        paceline batch run requests.jsonl answers.jsonl --model DIR --errors errors.jsonl
        paceline batch run requests.jsonl answers.jsonl --model DIR --check
        paceline batch run requests.jsonl answers.jsonl --model DIR --ray local --workers 2
    """

    input: Annotated[Path, POSITIONAL]
    """The file of requests."""
    output: Annotated[Path, POSITIONAL]
    """The file of answers."""
    _: KW_ONLY
    model: ModelOptions
    batch_size: BatchSize = None
    max_model_len: Annotated[MaxModelLen, Parameter(group=MODEL)] = None
    served_model_name: Annotated[tuple[str, ...], Parameter(group=MODEL)] = ()
    """What requests call the model; several may be given. MODEL by default."""
    drafting: DraftOptions = field(default_factory=DraftOptions)
    profile: Profile = None
    errors: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Write the lines of failed requests to this file, and not to OUTPUT."""
    check: bool = False
    """Only check the requests, as far as that needs no model, and print what is wrong with them."""
    ray: Annotated[str | None, Parameter(group=RAY)] = None
    """Address of a Ray cluster whose workers answer the requests, each with an engine; local starts one here."""
    workers: Annotated[int | None, Parameter(group=RAY), AT_LEAST_1] = None
    """Workers; 1 by default. Each takes as many CPUs as --threads says, 1 by default."""
    worker_gpus: Annotated[float, Parameter(group=RAY)] = 0
    """GPUs of a worker."""
    overwrite: Overwrite = False
    stats: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Print a table of drafting statistics on standard error."""
    quiet: Quiet = False
    log_level: LogLevel = None

    def run(self) -> int:
        """Answer what is missing."""
        from paceline.cli.batch_file.run import Run

        notes = open_notes(quiet=self.quiet, log_level=self.log_level)
        self._check()
        settings = self._settings()
        if self.check:
            return self._list_invalid(settings)
        return Run(
            input=self.input,
            output=self.output,
            errors=self.errors,
            overwrite=self.overwrite,
            model=self.model,
            drafting=self.drafting,
            batch_size=self.batch_size,
            max_model_len=self.max_model_len,
            profile=self.profile or "auto",
            cluster=self._cluster(),
            stats=self.stats,
            quiet=self.quiet,
            settings=settings,
            notes=notes,
        ).run()

    def _check(self) -> None:
        """Refuse options that contradict each other, before anything is read."""
        from paceline.cli.prompt_file.journal import STDOUT, check_writable, journal_of

        self.drafting.check()
        check_profile(self.profile)
        if self.ray is None and (self.workers is not None or self.worker_gpus):
            raise ValueError("--workers and --worker-gpus without --ray: give --ray ADDRESS, or --ray local")
        if self.worker_gpus < 0:
            raise ValueError(f"--worker-gpus {self.worker_gpus}: give at least 0")
        if self.input == STDOUT or self.output == STDOUT:
            raise ValueError("-: give files, so that an interrupted run can be resumed")
        if not self.input.is_file():
            raise ValueError(f"{self.input}: no such file; give a file of requests")
        places = {"OUTPUT": self.output, "--errors": self.errors}
        files = [self.input.resolve(), journal_of(self.output).resolve()]
        for option, path in places.items():
            if path is not None:
                check_writable(path, option=option)
                if path.resolve() in files:
                    raise ValueError(f"{option} {path} is another file of this run: give another name")
                files.append(path.resolve())

    def _settings(self) -> "Settings":
        from paceline.serve.settings import Settings

        return Settings(names=self.served_model_name or (self.model.model,))

    def _cluster(self) -> "Cluster | None":
        """Where the requests are answered with --ray."""
        from paceline.cli.batch_file.on_ray import Cluster

        if self.ray is None:
            return None
        cpus = self.model.threads or 1
        return Cluster(address=self.ray, workers=self.workers or 1, cpus=cpus, gpus=self.worker_gpus)

    def _list_invalid(self, settings: "Settings") -> int:
        from paceline.cli.batch_file.lines import survey

        found = survey(self.input, settings, tell=lambda line, error: print(f"{line.name}: {error.message}"))
        if not self.quiet:
            print(f"{len(found)} requests, {found.num_invalid} of them invalid", file=sys.stderr)
        return EXIT_DIFFERENT if found.num_invalid else EXIT_OK
