"""The native decoder's forward as one call of the CPU kernel. The eager decoder is its reference."""
