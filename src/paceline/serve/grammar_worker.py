"""Compiles grammars in a process of its own, which can be ended; run as a program, so that it loads llguidance alone.

A line of stdin is one text in JSON: the first a tokenizer's definition and the number of its end, every other a
grammar's definition. Every other line is answered by one: what is wrong with the grammar, "" if nothing is.
"""

import json
import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MEMORY = 4 << 30  # bytes of address space


def main() -> None:
    """Until stdin ends."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):  # not everywhere; the time is limited anyway
        pass
    definition, end, limits = json.loads(sys.stdin.readline())
    tokenizer = LLTokenizer(definition, eos_token=end)
    for line in sys.stdin:
        matcher = LLMatcher(tokenizer, json.loads(line), limits=LLParserLimits(**limits))
        if not matcher.is_error():
            matcher.compute_bitmask()
        print(json.dumps(matcher.get_error() if matcher.is_error() else ""), flush=True)


if __name__ == "__main__":
    main()
