"""Everything Larder knows; no queue, no web server, no environment variables."""
