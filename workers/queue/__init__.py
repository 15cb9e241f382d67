"""Celery: the app, its configuration, dispatch, retry, schedule, the broker."""
