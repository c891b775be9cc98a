"""Runs a program until it ends or whoever started this is gone, however that ended. Imports nothing of paceline.

    python end_with_owner.py PROGRAM [WORD ...]

Standard input is held open by the owner and never written to: its end is the owner's.
"""

import os
import subprocess
import sys
import threading


def main() -> int:
    """The program's exit code."""
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def watch() -> None:
        os.read(0, 1)
        program.kill()

    threading.Thread(target=watch, daemon=True).start()
    code = program.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())  # the thread still reads
