"""Constraints on tokens that run on the host: grammars and external logits processors."""
