"""Prompts to measure on. Knows nothing of models or of how they are run."""

# Written for this project, in the style of the library code that the embedded pair knows.
PYTHON_PROMPTS = (
    '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self, items=()):
        self._items = list(items)

    def push(self, item):
''',
    '''def read_lines(path, encoding="utf-8"):
    """Return the lines of a file without their line ends."""
    with open(path, encoding=encoding) as stream:
''',
    """class Version:
    def __init__(self, major, minor, patch):
        self.major = major
        self.minor = minor
        self.patch = patch

    def __eq__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
""",
    '''import os
import sys

def find_files(root, suffix):
    """Yield the paths of all files below root that end with suffix."""
    for folder, names, files in os.walk(root):
''',
    '''def parse_pair(text, separator="="):
    """Split text into a key and a value.

    Raises ValueError if the separator is missing.
    """
    if separator not in text:
''',
    '''class Timer:
    """Measures the time between start and stop."""

    def start(self):
        if self._started is not None:
            raise RuntimeError("timer is already running")
''',
)
