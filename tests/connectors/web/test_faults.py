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

from connectors.web.answers import BadAnswer, ServerFault, translate
from pipeline.errors import ConfigurationError, LarderError, SourceDenied, SourceUnavailable


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


MEANINGS = {
    "broke the connection": (
        "requests.ChunkedEncodingError requests.ConnectionError requests.HTTPError requests.ProxyError "
        "requests.RequestException requests.RetryError requests.UnrewindableBodyError urllib3.ClosedPoolError "
        "urllib3.EmptyPoolError urllib3.FullPoolError urllib3.HTTPError urllib3.IncompleteRead "
        "urllib3.MaxRetryError urllib3.NewConnectionError urllib3.PoolError urllib3.ProtocolError "
        "urllib3.ProxyError urllib3.RequestError urllib3.ResponseError urllib3.TimeoutStateError "
        "urllib3.UnrewindableBodyError"
    ),
    "did not answer in time": (
        "requests.ConnectTimeout requests.ReadTimeout requests.Timeout urllib3.ConnectTimeoutError "
        "urllib3.ReadTimeoutError urllib3.TimeoutError"
    ),
    "sent a damaged answer": (
        "requests.ContentDecodingError requests.InvalidJSONError requests.JSONDecodeError "
        "requests.StreamConsumedError urllib3.BodyNotHttplibCompatible urllib3.DecodeError "
        "urllib3.HeaderParsingError urllib3.InvalidChunkLength urllib3.ResponseNotChunked"
    ),
    "would get a header that cannot be sent": ("requests.InvalidHeader urllib3.InvalidHeader"),
    "has an address that cannot be used": (
        "requests.InvalidProxyURL requests.InvalidSchema requests.InvalidURL requests.MissingSchema "
        "requests.URLRequired urllib3.HostChangedError urllib3.LocationParseError urllib3.LocationValueError "
        "urllib3.ProxySchemeUnknown urllib3.ProxySchemeUnsupported urllib3.URLSchemeUnknown"
    ),
    "cannot be reached securely: the TLS connection is refused": ("requests.SSLError urllib3.SSLError"),
    "redirects in a circle": ("requests.TooManyRedirects"),
    "has a host name that cannot be resolved": ("urllib3.NameResolutionError"),
}
"""What the message says -> the classes it stands for; a new one of the libraries must be sorted in here."""


def test_the_walk_finds_the_classes() -> None:
    assert len(EVERY) > 45
    assert requests.exceptions.ChunkedEncodingError in EVERY


@pytest.mark.parametrize("kind", EVERY, ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_every_class_of_the_libraries_is_translated(kind: type[Exception]) -> None:
    error = translate(kind.__new__(kind), "Confluence")

    assert error.fix
    meaning = error.message.removeprefix("Confluence ").rpartition(" (")[0]
    name = f"{kind.__module__.split('.')[0]}.{kind.__name__}"
    assert name in MEANINGS[meaning].split(), (
        "new in the library? say in connectors/web/faults.py what it means"
    )


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
        (wrapped(ssl.SSLEOFError("EOF in handshake")), BadAnswer),
        (http.client.RemoteDisconnected("x"), BadAnswer),
        (ConnectionResetError(), BadAnswer),
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
