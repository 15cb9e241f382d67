"""Operators' requests: status, explain, clear, reindex, doctor, evaluation."""
