"""What a step pays for each sampling option: whole steps with it and without, in turn, on a real target."""
