"""How a step grows with rows, nodes and context, and the time to the first token of a long prompt."""
