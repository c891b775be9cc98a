"""Requests over fixed rows: who waits, who runs, what is shared. Knows nothing of text."""
