"""A command, and the exit codes of all."""

from abc import ABC, abstractmethod

EXIT_OK, EXIT_DIFFERENT, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 the demo or an audit found a difference, or some prompts failed; 2 bad input, or a file "
    "that cannot be read or written; 130 interrupted (finished results are printed or saved)."
)


class Command(ABC):
    """A command is the dataclass of its options. ``run`` imports what it needs, so that ``--help`` loads no torch."""

    __slots__ = ()

    @abstractmethod
    def run(self) -> int:
        """Run it; the exit code. Raises ValueError and OSError for what users can correct."""
