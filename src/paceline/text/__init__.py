"""Tokenizers, chat templates, incremental decoding and stop strings."""
