"""Compiles grammars in a process of its own, which can be ended; run as a program, so that it loads llguidance alone.

A line of stdin is JSON: the first a tokenizer's definition, the number of its end, the parser's limits and the seconds
of processor time that a grammar may take; every other a grammar's definition. Every other line is answered by one: what
is wrong with the grammar, "" if nothing is. A grammar that takes longer ends the process, by SIGPROF.
"""

import json
import signal
import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MEMORY = 4 << 30  # bytes of address space


def allow(seconds: float) -> None:
    """So much processor time from now; 0 is any. Where there is no such clock, who waits has one."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Until stdin ends."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):  # not everywhere; the time is limited anyway
        pass
    definition, end, limits, seconds = json.loads(sys.stdin.readline())
    tokenizer = LLTokenizer(definition, eos_token=end)
    for line in sys.stdin:
        allow(seconds)
        matcher = LLMatcher(tokenizer, json.loads(line), limits=LLParserLimits(**limits))
        if not matcher.is_error():
            matcher.compute_bitmask()
        allow(0)
        print(json.dumps(matcher.get_error() if matcher.is_error() else ""), flush=True)


if __name__ == "__main__":
    main()
