"""Metrics, traces, logs and signs of life of Larder's processes."""

REQUEST_HEADER = "larder_request"
"""Header of a message with the id of the API request that it came from."""
