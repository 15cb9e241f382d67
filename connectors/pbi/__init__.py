"""Product backlog items out of the backlog pipeline's JSON files."""
