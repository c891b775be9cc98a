"""The target's hidden states over the training rows, computed once and kept on disk."""
