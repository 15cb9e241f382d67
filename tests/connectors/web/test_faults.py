"""Every error of the HTTP libraries becomes one of ours."""

from __future__ import annotations

import http.client
import pickle
import ssl
from types import ModuleType

import pytest
import requests
import urllib3.exceptions
from urllib3.connectionpool import HTTPSConnectionPool

from connectors.web import ServerFault, translate
from connectors.web.faults import TABLE
from pipeline.errors import ConfigurationError, LarderError, RateLimited, SourceDenied, SourceUnavailable


def classes(module: ModuleType) -> list[type[Exception]]:
    """All errors that a module defines or shows, without warnings."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and not issubclass(value, Warning)
        and value.__module__.split(".")[0] == module.__name__.split(".")[0]
    ]


EVERY = sorted(
    {*classes(requests.exceptions), *classes(urllib3.exceptions)},
    key=lambda c: f"{c.__module__}.{c.__name__}",
)


def test_the_walk_finds_the_classes() -> None:
    assert len(EVERY) > 45
    assert requests.exceptions.ChunkedEncodingError in EVERY


@pytest.mark.parametrize("kind", EVERY, ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_every_class_of_the_libraries_is_translated(kind: type[Exception]) -> None:
    assert kind in TABLE, "new in the library: say in connectors/web/faults.py what it means"
    error = translate(kind.__new__(kind), "Confluence")

    assert isinstance(error, LarderError)
    assert error.fix
    assert error.message.startswith("Confluence ")


def wrapped(reason: Exception) -> requests.exceptions.ConnectionError:
    """As requests wraps what went wrong below."""
    pool = HTTPSConnectionPool("127.0.0.1")
    return requests.exceptions.SSLError(
        urllib3.exceptions.MaxRetryError(pool, "/x?token=abc", urllib3.exceptions.SSLError(reason))
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (wrapped(ssl.SSLCertVerificationError("self-signed")), SourceDenied),
        (wrapped(ssl.SSLError("wrong version number")), SourceDenied),
        (wrapped(ssl.SSLEOFError("EOF in handshake")), SourceUnavailable),
        (http.client.RemoteDisconnected("x"), SourceUnavailable),
        (ConnectionResetError(), SourceUnavailable),
        (TimeoutError(), SourceUnavailable),
        (UnicodeEncodeError("latin-1", "x", 0, 1, "no"), ConfigurationError),
        (requests.exceptions.InvalidHeader("X: secret\n"), ConfigurationError),
    ],
)
def test_what_lies_below_decides(error: Exception, kind: type[LarderError]) -> None:
    made = translate(error, "Confluence")

    assert type(made) is kind
    assert "abc" not in f"{made}{made!r}"
    assert "secret" not in f"{made}{made!r}"
    assert made.__cause__ is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, SourceDenied), (403, SourceDenied), (429, RateLimited), (404, ServerFault), (500, ServerFault)],
)
def test_an_error_with_an_answer_is_judged_by_its_status(status: int, kind: type[LarderError]) -> None:
    response = requests.Response()
    response.status_code = status

    assert type(translate(requests.HTTPError("x", response=response), "Confluence")) is kind


def test_our_own_errors_pass_and_mistakes_of_ours_are_not_hidden() -> None:
    ours = SourceUnavailable("x")
    assert translate(ours, "Confluence") is ours
    with pytest.raises(KeyError):
        translate(KeyError("bug"), "Confluence")


def test_an_error_that_wraps_itself_ends() -> None:
    error = requests.ConnectionError()
    error.args = (error,)
    assert isinstance(translate(error, "Confluence"), SourceUnavailable)


def test_a_server_fault_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(ServerFault("it broke", status=502, fix="wait")))  # noqa: S301 (our own)
    assert (again.status, again.message, again.fix) == (502, "it broke", "wait")
