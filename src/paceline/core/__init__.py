"""Tensors and rules that every other part stands on; imports torch and nothing of Paceline."""
