"""What a GPU makes of a target of eight billion weights: plain beside its bandwidth, drafted beside transformers."""
