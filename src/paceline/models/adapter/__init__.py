"""Any other decoder of transformers, run by its own code over our cache."""
