"""Paceline: lossless acceleration of autoregressive transformers by speculative decoding."""

__version__ = "0.1.0"
