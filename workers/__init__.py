"""The doors: queue, clock, shell."""

from importlib.metadata import PackageNotFoundError, version

PACKAGE = "larder"


def installed_version() -> str:
    """The version in the metadata of the installed package, such as `0.1.0`; `unknown` where none is installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "unknown"
