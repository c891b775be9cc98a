"""What was enumerated, for the table of ``make distributions``: a line per distribution,
in the file that PACELINE_DISTRIBUTIONS names.
"""

import json
import os


def note(**facts):
    """Add a line; nothing where no file is named."""
    path = os.environ.get("PACELINE_DISTRIBUTIONS")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
