"""Which verifier gains most, by measurement: every verifier with every draft that suits it, in turn."""
