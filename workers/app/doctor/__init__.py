"""The doctor: checks of the machine, the servers, the work and the content."""
