"""Made-up requests to the server, and what may become of each."""
