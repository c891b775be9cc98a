"""``python -m benchmarks``: the studies whose tables and pictures the documentation shows."""

import sys

from benchmarks.study_options import study
from paceline.cli import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], app=study, name="python -m benchmarks"))
