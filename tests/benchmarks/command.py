"""The studies' command, whose options may be given anew."""

from benchmarks.__main__ import main


def run(study, *words):
    """The exit code of ``study``; of an option that is given twice the last counts."""
    options: dict[str, list[str]] = {}
    last = ""
    for word in map(str, words):
        if word.startswith("--"):
            options[word], last = [], word
        options[last].append(word)
    return main([study, *(word for group in options.values() for word in group)])
