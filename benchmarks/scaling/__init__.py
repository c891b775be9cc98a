"""How a step's time and memory grow with rows, nodes and context, beside the floor; and the time to the first token."""
