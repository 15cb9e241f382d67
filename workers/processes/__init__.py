"""Processes of the fleet: supervisor, heartbeats, logs, metrics."""
