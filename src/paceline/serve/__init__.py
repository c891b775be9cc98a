"""The server: an engine behind the HTTP interface of OpenAI."""
