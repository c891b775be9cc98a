"""The command line. A command's code, and torch with it, loads only when the command runs."""

from paceline.cli.app import app as app
from paceline.cli.app import main as main
from paceline.cli.app import run as run
from paceline.cli.command import EXIT_BAD_INPUT as EXIT_BAD_INPUT
from paceline.cli.command import EXIT_CODES as EXIT_CODES
from paceline.cli.command import EXIT_DIFFERENT as EXIT_DIFFERENT
from paceline.cli.command import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from paceline.cli.command import EXIT_OK as EXIT_OK
from paceline.cli.commands import COMMANDS as COMMANDS
