"""One module per kind of embedding provider, and shared HTTP code."""
