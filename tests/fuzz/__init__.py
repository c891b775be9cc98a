"""Requests that hypothesis makes up, through the public API, each token judged by the naive reference."""
