"""Schedules requests over fixed rows: queueing, admission, prefix sharing, steps and their results."""
