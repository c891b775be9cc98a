"""Options of ``paceline options``."""

from dataclasses import dataclass

from paceline.cli.options import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """List the sampling options: where each one works, and what is refused.

    Examples:

        paceline options
        paceline options --json
    """

    json: Json = False
