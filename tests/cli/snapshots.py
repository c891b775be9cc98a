"""Whole outputs, compared with the text files of snapshots/.

``PACELINE_SNAPSHOTS=write python -m pytest tests/cli`` writes those files anew; the difference belongs in the review.
"""

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"


def check(name, text, **names):
    """Compare ``text`` with ``name``.txt, without styles and spaces at ends; values of ``names`` are shown by name."""
    for word, value in names.items():
        text = text.replace(str(value), word)
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    path = FOLDER / f"{name}.txt"
    if os.environ.get("PACELINE_SNAPSHOTS") == "write":
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"see {__name__} on how to write {path} anew"
