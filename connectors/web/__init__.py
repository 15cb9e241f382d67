"""Access to foreign HTTP services, shared by the connectors that need it."""
