"""Cost of a step for each verifier, by rows, vocabulary and draft, without a model."""
