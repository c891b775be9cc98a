from tests.benchmarks.command import still_machine

__all__ = ["still_machine"]
