"""Errors that end one request and are kept until its results are read."""

from typing import TypeVar

E = TypeVar("E", bound=Exception)


def without_frames(error: E) -> E:
    """``error`` without its traceback, context and cause.

    They hold the frames of every caller, and with them caches and logits, in a circle if a frame holds the error.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
