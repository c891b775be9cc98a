"""Adapter that runs other transformers decoders by their own code over a slot cache."""
