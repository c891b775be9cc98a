"""The only trainer: drafters and small targets learn through the code that later serves them."""
