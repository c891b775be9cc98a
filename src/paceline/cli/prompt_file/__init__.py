"""Prompts of a file, through one engine, into a file of results that can be resumed."""
