"""Memory bandwidth and arithmetic rates of a machine, and the roofline of a forward on it."""
