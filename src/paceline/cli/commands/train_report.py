"""``paceline train report``: the curves of a run, while it goes on, after an interruption, or at its end."""

from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from rich.console import Console

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.options import POSITIONAL


@dataclass(frozen=True, slots=True)
class TrainReport(Command):
    """Draw the loss and the acceptance of a run, as a page and as a picture.

    It reads the log, so it works while the run goes on, after an interruption, and at the end.

    Examples:

        paceline train report runs/heads
        paceline train report runs/heads --output page.html --svg curves.svg
    """

    run_folder: Annotated[Path, POSITIONAL]
    """The output of a run."""
    _: KW_ONLY
    output: Path | None = None
    """The page; report.html in the run's directory by default."""
    svg: Path | None = None
    """The picture of its curves; curves.svg in the run's directory by default."""

    def run(self) -> int:
        """Write both, and print the page's first sentence and the next command."""
        page, svg = self.output or self.run_folder / "report.html", self.svg or self.run_folder / "curves.svg"
        for option, path in (("--output", self.output), ("--svg", self.svg)):
            if path is not None and not path.parent.is_dir():
                raise ValueError(f"{option} {path}: no such directory: {path.parent}; create it")
        if page.resolve() == svg.resolve():
            raise ValueError(f"--output and --svg are both {page}: give two files")
        if find_spec("matplotlib") is None:
            raise ValueError("the curves need matplotlib: run pip install 'paceline[bench]'")
        from paceline.cli.training_page import draw_curves, make_page, next_step, summary
        from paceline.train.history import read_history

        history = read_history(self.run_folder)
        drawing = draw_curves(history)
        svg.write_text(drawing, encoding="utf-8")
        page.write_text(make_page(history, drawing), encoding="utf-8")
        console = Console(highlight=False)
        for line in (summary(history), f"written: {page}, {svg}", next_step(history)):
            console.print(line, soft_wrap=True, markup=False)
        return EXIT_OK
