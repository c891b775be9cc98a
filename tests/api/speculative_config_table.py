"""The table of docs/speculative_config.md, made from what the code reads.

``python -m tests.api.speculative_config_table`` writes it into the page.
"""

from itertools import groupby
from pathlib import Path

from paceline.api.speculative_fields import (
    HARMLESS,
    HONOURED,
    METHODS,
    REFUSED,
    REFUSED_METHODS,
    REFUSED_RULES,
)

PAGE = Path(__file__).parents[2] / "docs" / "speculative_config.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"


def _rows():
    """Name, answer, text."""
    for name, text in METHODS.items():
        yield f"method `{name}`", "honoured", text
    for name, text in REFUSED_METHODS.items():
        yield f"method `{name}`", "refused", text
    for name, (methods, text) in HONOURED.items():
        only = "" if methods == tuple(METHODS) else f"{', '.join(f'`{one}`' for one in methods)}: "
        yield f"`{name}`", "honoured", only + text
    for value, text in REFUSED_RULES.items():
        yield f"`rejection_sample_method` `{value}`", "refused", text
    for name, text in HARMLESS.items():
        yield f"`{name}`", "ignored, with a note", text
    for name, refusal in REFUSED.items():
        unless = f", but for {', '.join(f'`{one}`' for one in refusal.neutral)}" if refusal.neutral else ""
        yield f"`{name}`", f"refused{unless}", refusal.reason


def table():
    """In Markdown; names with the same answer share a row."""
    lines = ["| method or key | answer | what it is here, or what to use |", "| --- | --- | --- |"]
    for (answer, text), rows in groupby(_rows(), key=lambda row: row[1:]):
        names = [name for name, *_ in rows]
        names = [names[0], *(name.removeprefix("method ") for name in names[1:])]
        lines.append(f"| {', '.join(names)} | {answer} | {text} |")
    return "\n".join(lines) + "\n"


def rewrite(page):
    """The page with this table."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
