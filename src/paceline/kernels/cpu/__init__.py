"""CPU kernels: C++ built at first use, the ctypes structs, and the Python callers that replace torch operations."""
