"""Which verification rule gains most: every rule with every draft that suits it, on the same texts."""
