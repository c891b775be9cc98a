"""The training loop and what it needs: processes, checkpoints, logs, signals."""
