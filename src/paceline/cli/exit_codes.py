"""The exit codes of the command line."""

EXIT_OK, EXIT_DIFFERENT, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 the demo or an audit found a difference, or some prompts failed; 2 bad input, or a file "
    "that cannot be read or written; 130 interrupted (finished results are printed or saved)."
)
