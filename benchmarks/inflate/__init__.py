"""Large models with the function of small ones: wider layers, and vocabularies of ids that are never chosen."""
