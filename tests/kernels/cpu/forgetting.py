"""Makes a process forget the kernel's libraries, which it otherwise finds and loads once."""

from paceline.kernels.cpu import instruction_set, operators


def forget_libraries():
    for cached in (instruction_set._default, instruction_set._load, instruction_set.processor_features):
        cached.cache_clear()
    operators.entry.cache_clear()
