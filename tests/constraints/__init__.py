"""Rules of requests: grammars and processors, on the one step."""
