"""The native decoder's forward as one call of a C++ kernel, for CPUs. The eager decoder is its reference."""
