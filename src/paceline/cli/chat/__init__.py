"""``paceline chat``: a conversation, the model that answers it, and the terminal or pipe that it is led from."""
