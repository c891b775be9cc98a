"""Files of requests in OpenAI's batch format, and the files of their answers."""
