import io
import re

import pytest
from rich.console import Console

from paceline.api import Source
from paceline.cli.show import SourcePrinter, print_legend


def printed(pieces, *, prompt="", colour=False, width=80, pace=None):
    file = io.StringIO()
    system = "truecolor" if colour else None
    console = Console(
        file=file, force_terminal=colour, color_system=system, highlight=False, width=width, no_color=False
    )
    printer = SourcePrinter(console=console, pace=pace)
    printer.prompt(prompt)
    for piece in pieces:
        printer.put(*piece)
    printer.end()
    return file.getvalue()


def test_marks_are_aligned_with_their_tokens():
    pieces = [("for ", Source.DRAFTED), ("x", Source.CORRECTED), (" in", Source.DRAFTED), (" y:", Source.BONUS)]
    assert printed(pieces, prompt="# a\n  ") == "# a\n  for x in y:\n  ~~~~^~~~+++\n"


def test_token_that_spans_lines_is_marked_on_both():
    assert printed([("a\n  b", Source.DRAFTED), ("c", Source.PLAIN)]) == "a\n~\n  bc\n~~~\n"


def test_plain_text_has_no_line_of_marks():
    assert printed([("a\nb", Source.PLAIN)], prompt="x = ") == "x = a\nb\n"


def test_marks_follow_wide_characters():
    assert printed([("日", Source.DRAFTED), ("x", Source.BONUS)]) == "日x\n~~+\n"


@pytest.mark.parametrize("colour", [True, False])
def test_generated_escape_sequences_do_not_reach_the_terminal(colour):
    out = printed([("\x1b[2J\x07[red]", Source.PLAIN)], colour=colour)
    assert "\x1b[2J" not in out and "\x07" not in out
    assert "\u241b[2J\u2407[red]" in out


def test_colours_need_no_marks():
    out = printed([("a", Source.DRAFTED), ("b", Source.CORRECTED), ("c", Source.BONUS)], colour=True)
    assert "\x1b[32ma\x1b[0m" in out and "~" not in out
    assert len({part.split("m")[0] for part in out.split("\x1b[") if part.endswith(("a", "b", "c"))}) == 3


def test_long_lines_are_not_broken():
    assert printed([("x" * 100, Source.DRAFTED)], width=40) == "x" * 100 + "\n" + "~" * 100 + "\n"


def test_legend_explains_every_mark():
    file = io.StringIO()
    print_legend(Console(file=file, color_system=None, width=40))
    assert all(
        mark in file.getvalue() for mark in ("~~ drafted", "^^ the target's correction", "++ the target's bonus")
    )
    file = io.StringIO()
    print_legend(Console(file=file, color_system=None, width=120), rejected=True)
    assert "-- drafted and rejected" in file.getvalue()


REJECTED = [
    ("for ", Source.DRAFTED),
    ("x", Source.CORRECTED, "y in\n  "),
    (" in:\n", Source.PLAIN),
    ("end", Source.BONUS),
]


def test_rejected_tokens_stay_in_one_line_and_are_marked_where_there_is_no_colour():
    assert printed(REJECTED, prompt=">") == ">for [-y in\u21b5  -]x in:\n ~~~~-----------^\nend\n+++\n"


def test_rejected_tokens_are_struck_through_in_colour():
    assert "\x1b[2;9;31my in\u21b5  \x1b[0m\x1b[1;33mx" in printed(REJECTED, colour=True)


def test_animated_line_is_drawn_again_and_ends_without_what_was_rejected():
    out = printed(REJECTED, prompt="# prompt\n>", colour=True, pace=0.0)
    struck = out.index("\x1b[2;9;31my in\u21b5  \x1b[0m")
    assert out.startswith("\x1b[2m# prompt\x1b[0m\n") and "\x1b[2K" in out[struck:]
    lines = [re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line.rpartition("\x1b[2K")[2]) for line in out.split("\n")]
    assert lines[:3] == ["# prompt", ">for x in:", "end"], "of each line, what was drawn last"
