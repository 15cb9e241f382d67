"""Step 4 jobs: the queue's side, the client's helpers, and files of the backlog pipeline."""
