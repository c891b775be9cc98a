"""Constraints of requests: grammars and external logits processors."""
