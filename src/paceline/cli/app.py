"""The command line application: reads arguments into the options of a command, and runs it. Loads no torch itself."""

import inspect
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter
from cyclopts.exceptions import CycloptsError, MissingArgumentError, UnknownOptionError, ValidationError

from paceline import __version__
from paceline.cli.command import EXIT_BAD_INPUT, EXIT_CODES, EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.commands import COMMANDS
from paceline.cli.commands.batch_run import HELP as BATCH_HELP
from paceline.cli.corpus import HELP as DATA_HELP
from paceline.kernels.cpu.instruction_set import check_environment

HELP = """Lossless acceleration of language models by speculative decoding.

A cheap drafter proposes several tokens and the target model verifies them in one forward. Rejected tokens are replaced
by the target's own, so the output is the same as without a drafter.

Start here:

    paceline demo
    paceline generate --model DIR --draft DRAFT_DIR "def quicksort(items):"
    paceline inspect DIR
"""


def _shown_default(value: object) -> object:
    """Flags that are off and empty lists show no default."""
    return None if value is False or value == () else value


app = App(
    name="paceline",
    help=HELP,
    help_format="markdown",
    help_epilogue=EXIT_CODES,
    version=f"paceline {__version__}",
    group_parameters=Group("Options", sort_key=-10),
    default_parameter=Parameter(
        negative=(), allow_leading_hyphen=True, allow_repeating=True, show_default=_shown_default
    ),
)
_groups = {
    "train": App(name="train", sort_key=9),
    "bench": App(name="bench", sort_key=10),
    "batch": App(name="batch", help=BATCH_HELP, sort_key=2),
    "data": App(name="data", help=DATA_HELP, sort_key=11),
    "datastore": App(name="datastore", help="Build and inspect what the drafter retrieval copies from.", sort_key=12),
}
for _group in _groups.values():
    app.command(_group)
for _number, (_name, _options) in enumerate(COMMANDS.items()):
    _first, _, _second = _name.partition(" ")
    _help = (inspect.getdoc(_options) or "").replace("Examples:", "Usage examples:")  # cyclopts drops "Examples:"
    if _second:
        _groups[_first].command(_options, name=_second, help=_help, sort_key=_number)
    elif _first in _groups:
        _groups[_first].default(_options)
        _groups[_first].help = _help
    else:
        app.command(_options, name=_name, help=_help, sort_key=_number)
app.register_install_completion_command()


@app.command(name="--show-completion")
def show_completion(shell: Literal["bash", "zsh", "fish", "powershell"] = "bash") -> None:
    """Print the completion script of a shell."""
    print(app.generate_completion(shell=shell))


@app.command(show=False)
def experiment(*arguments: Annotated[str, Parameter(show=False)]) -> None:
    """Deprecated."""
    raise ValueError(
        "the studies are now `python -m benchmarks resume` and `python -m benchmarks batched`, in a source checkout"
    )


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code. Errors that users can correct are one line on standard error."""
    try:
        _check_text(arguments)
        options = read_options(list(arguments) or ["--help"])
        if not isinstance(options, Command):
            return EXIT_OK  # --help and its like have printed
        check_environment()
        return options.run()
    except BrokenPipeError:
        raise
    except (CycloptsError, ValueError, OSError) as error:
        print(f"paceline: {' '.join(_describe(error).split())}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _check_text(arguments: Sequence[str]) -> None:
    """Raise ValueError for an argument that is no text: its bytes were not UTF-8. Names of files may be anything."""
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            if not os.path.lexists(word) and not os.path.lexists(word.partition("=")[2]):
                shown = word.encode(errors="backslashreplace").decode()
                raise ValueError(f"argument {shown}: it is not UTF-8; convert it") from error


def _describe(error: Exception) -> str:
    argument = error.argument if isinstance(error, CycloptsError) else None
    if isinstance(error, ValidationError) and argument is not None:
        return f"{argument.name} {error.exception_message}"
    if isinstance(error, MissingArgumentError) and argument is not None:
        return f"{argument.name} is missing; see: {' '.join(('paceline', *(error.command_chain or ())))} --help"
    return str(error)


def main() -> None:
    """Entry point of the console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may be unable to show all characters
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone: end quietly, without an error from the interpreter's own flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_DIFFERENT
    sys.exit(code)


def read_options(arguments: list[str]) -> Any:
    """The options of the command, or what a flag such as --help returns."""
    try:
        return _call(arguments)
    except UnknownOptionError:
        # cyclopts takes "-" (standard input) for an unknown option: pass it behind "--" instead.
        for at, word in enumerate(arguments):
            if word == "-":
                try:
                    return _call([*arguments[:at], *arguments[at + 1 :], "--", word])
                except CycloptsError:
                    continue
        raise


def _call(arguments: list[str]) -> Any:
    return app(arguments, print_error=False, exit_on_error=False, result_action="return_value")
