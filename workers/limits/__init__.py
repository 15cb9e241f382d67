"""Limits on foreign services: requests per host, tokens per minute, daily budgets; shared by all workers."""
