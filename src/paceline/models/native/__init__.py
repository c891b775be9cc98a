"""Decoders of the supported families in plain PyTorch: configuration, layers, weights, quantization."""
