"""The HTTP API: it translates and calls one function of the other rooms."""
