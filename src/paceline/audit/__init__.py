"""What a machine and a model allow, and what became of it."""
