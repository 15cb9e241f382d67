"""`python -m workers.cli`, for processes that start each other."""

from workers.cli import main

main()
