"""Entry points that start work: Celery tasks and beat, command line, HTTP API; settings and processes."""

PACKAGE = "larder"


def installed_version() -> str:
    """The version in the metadata of the installed package, such as `0.1.0`; `unknown` where none is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "unknown"


def version_line() -> str:
    """The output of `larder --version`."""
    return f"{PACKAGE} {installed_version()}"
