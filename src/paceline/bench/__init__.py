"""The only benchmark runner: paired, alternating runs of configurations that emit the same number of tokens."""
