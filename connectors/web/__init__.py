"""The edge to other people's HTTP services, shared by the connectors that need one."""
