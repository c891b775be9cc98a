"""Where messages come from where there is no terminal: each is a line."""

from typing import BinaryIO, Protocol, final


class Reader(Protocol):
    """Reads what the user writes."""

    def read(self, default: str) -> str | None:
        """The next message or command, None at the end. ``default`` is what the user begins with."""
        ...


@final
class LineReader:
    """One message a line of ``file``; ``default`` is not shown to anyone."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._number = file, 0

    def read(self, default: str) -> str | None:
        """The next line. Raises ValueError for one that is not UTF-8."""
        line = self._file.readline()
        self._number += 1
        if not line:
            return None
        try:
            return line.decode("utf-8-sig" if self._number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {self._number} of standard input is not UTF-8: convert it") from error
