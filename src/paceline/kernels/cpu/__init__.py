"""The CPU kernel: C++ built at first use, its structures, and what calls it in place of torch operations."""
