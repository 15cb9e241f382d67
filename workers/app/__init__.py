"""Operators' requests: status, explain, clear, reindex, doctor, evaluation."""

ID_CHARACTERS = 8
"""Characters of a job's id that people see, and need to type."""
