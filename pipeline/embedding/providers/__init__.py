"""One module per embedding provider, and what their HTTP services share."""
