"""Training: draft heads, draft models and small targets, with the modules that later serve them."""
