"""Between strings and token ids: tokenizers, text in pieces, stop strings. Imports no model code."""
