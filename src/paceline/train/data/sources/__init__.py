"""Readers of training data, one for each kind of source, and the files of precomputed hidden states."""
