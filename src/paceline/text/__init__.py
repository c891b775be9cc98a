"""Between strings and token ids. Imports no model code."""
