"""Distributions of the output, proved by walking every outcome of every random choice through the real step."""
