"""What a machine can do: memory bandwidth, arithmetic rates, and the least time that a forward takes on it."""
