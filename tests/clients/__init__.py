"""Programs of others, unmodified, as clients of `paceline serve`."""
