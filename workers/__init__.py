"""The doors: queue, clock, shell."""
