"""Everything that goes wrong: sorted where it enters, and made good by the next sync."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from connectors.azure_devops.sdk import (
    FOREIGN_ERRORS,
    BoardsRefused,
    ProjectMissing,
    TooManyHits,
    WiqlRefused,
    WorkItemMissing,
    translated,
)
from connectors.web.answers import FOREIGN
from connectors.web.session import Access
from pipeline.errors import LarderError, RateLimited, SourceDenied, SourceUnavailable
from tests.connectors.azure_devops.world import PAT, Store, options_for, source_for, truth
from tests.connectors.worlds import Clock
from tests.fakes.azure_devops import FakeAzureDevOps, too_many_requests
from tests.fakes.server import Fault, Seen

WRONG_TOKEN = Fault.status(401, body=b"")
ROUNDS: dict[str, tuple[Fault, type[LarderError]]] = {
    "429 in seconds": (too_many_requests("7"), RateLimited),
    "429 with a date": (too_many_requests("Fri, 01 Jan 2100 00:00:00 GMT"), RateLimited),
    "429 without a word": (too_many_requests(None), RateLimited),
    "503 with a time": (Fault.status(503, headers={"Retry-After": "5"}), RateLimited),
    "500": (Fault.status(500, body='{"message": "x"}', content_type="application/json"), SourceUnavailable),
    "502": (Fault.status(502), SourceUnavailable),
    "503": (Fault.status(503), SourceUnavailable),
    "408": (Fault.status(408), SourceUnavailable),
    "reset": (Fault.reset(), SourceUnavailable),
    "reset in the body": (Fault.reset_in_body(), SourceUnavailable),
    "cut body": (Fault.cut_body(), SourceUnavailable),
    "truncated JSON": (Fault.truncated(), SourceUnavailable),
    "empty": (Fault.status(200, body=b"", content_type="application/json"), SourceUnavailable),
    "a list for an object": (
        Fault.status(200, body="[]", content_type="application/json"),
        SourceUnavailable,
    ),
    "an empty object": (Fault.status(200, body="{}", content_type="application/json"), SourceUnavailable),
    "null": (Fault.status(200, body="null", content_type="application/json"), SourceUnavailable),
    "a text": (Fault.status(200, body='"x"', content_type="application/json"), SourceUnavailable),
    "slow": (Fault.slow(60), SourceUnavailable),
    "sign-in page 200": (Fault.html(200), SourceDenied),
    "sign-in page 203": (Fault.html(203), SourceDenied),
    "401": (WRONG_TOKEN, SourceDenied),
    "redirect to a sign-in page": (Fault.redirect("/_signin"), SourceDenied),
    "redirect to elsewhere": (Fault.redirect("http://127.0.0.1:9/x"), SourceDenied),
}
OF_AN_ITEM = frozenset(
    (
        "500", "502", "503", "reset", "reset in the body", "cut body", "truncated JSON", "empty", "a list for an object",
        "an empty object", "null", "a text",
    )
)  # fmt: skip
"""Faults that a single item may cause."""
PLACES = ("/wiql", "/workitemsbatch", "/workitemrevisions", "/comments", "/_apis")


def _seconds_for(fault: Fault) -> float:
    """For which an answer is waited: few only where none comes, since a busy machine takes its time for the others."""
    return 0.5 if fault.kind == "slow" else 30.0


def _at(place: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.path.lower().endswith(place)


@pytest.mark.parametrize("kind", ROUNDS)
def test_after_a_fault_anywhere_the_store_equals_the_service_and_nothing_was_deleted(
    services: FakeAzureDevOps, kind: str
) -> None:
    fault, expected = ROUNDS[kind]
    clock = Clock()
    limiter = options_for(services, clock=clock).access.limiter
    access = Access(base_url=services.url, limiter=limiter, read_timeout=_seconds_for(fault))
    condition = "[System.Id] > 0"  # so that following the feed asks a query as well
    services.bulk("Web", 5)
    services.comment(3, "word")
    for place in PLACES[:-1]:
        store = Store()
        for _ in ("walk", "follow"):
            services.edit(3, title=f"{kind} at {place} {store.pages}")
            services.edit(4, title="changed")
            services.faults.next(fault, when=_at(place))
            errors = store.sync_through(services, clock, access=access, wiql=condition)
            assert services.faults.waiting == 0
            assert isinstance(errors[0], expected), errors
            assert errors[0].fix
            assert PAT not in str(errors[0])
            assert store.seen() == truth(services)
            assert store.deleted == []


@pytest.mark.usefixtures("tenths")
@pytest.mark.parametrize("kind", ROUNDS)
def test_a_listing_with_a_fault_in_it_is_an_error_and_never_a_short_list(
    services: FakeAzureDevOps, kind: str
) -> None:
    fault, expected = ROUNDS[kind]
    services.bulk("Web", 21)
    whole = source_for(services).ids()
    for place in PLACES[:2]:
        clock = Clock()
        limiter = options_for(services, clock=clock).access.limiter
        access = Access(base_url=services.url, limiter=limiter, read_timeout=_seconds_for(fault))
        services.faults.next(fault, when=_at(place))
        if (
            place == "/workitemsbatch" and kind in OF_AN_ITEM
        ):  # asked for once more, since an item may be to blame
            assert source_for(services, access=access).ids() == whole
            assert services.faults.waiting == 0
            continue
        with pytest.raises(expected):
            source_for(services, access=access).ids()


def test_no_request_comes_before_the_time_the_service_asked_for(services: FakeAzureDevOps) -> None:
    clock = Clock()
    services.bulk("Web", 3)
    services.faults.next(too_many_requests("20"), when=_at("/workitemsbatch"))
    store = Store()
    with pytest.raises(RateLimited) as caught:
        store.sync(
            source_for(services, clock=clock, access=(access := options_for(services, clock=clock).access))
        )
    assert caught.value.retry_after == 20
    count = len(services.log)

    clock.now += 19
    with pytest.raises(RateLimited):
        store.sync(source_for(services, access=access))
    assert len(services.log) == count
    clock.now += 2
    store.sync(source_for(services, access=access))

    assert store.seen() == truth(services)


def test_a_good_answer_that_asks_for_rest_is_used_and_then_obeyed(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 3)
    store = Store()
    store.sync(source_for(services))
    services.edit(1, title="x")
    services.load_headers = {"Retry-After": "9", "X-RateLimit-Remaining": "0"}
    access = options_for(services, clock=Clock()).access
    count = len(services.log)

    with pytest.raises(RateLimited) as caught:
        store.sync(source_for(services, access=access))

    assert len(services.log) == count + 1
    assert caught.value.retry_after == pytest.approx(9)


def test_posts_and_gets_are_sent_once(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 3)
    for place in PLACES[:3]:
        source = source_for(services)
        services.faults.next(Fault.status(503), when=_at(place), times=None)
        before = len([s for s in services.log if _at(place)(s)])
        with pytest.raises(SourceUnavailable):
            list(source.pages(None))
        assert len([s for s in services.log if _at(place)(s)]) == before + 1
        services.faults.clear()


def test_a_feed_that_stands_still_is_an_error_and_no_loop(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 3)
    store = Store()
    store.sync(source_for(services))
    assert store.cursor is not None
    token = store.cursor["tokens"]["Web"]
    body = json.dumps({"values": [], "continuationToken": token, "isLastBatch": False})
    services.faults.next(Fault.status(200, body=body, content_type="application/json"), times=None)

    with pytest.raises(SourceUnavailable):
        store.sync(source_for(services))


def _service_error(key: str | None, message: str = "TF999999: no") -> Exception:
    from azure.devops._models import WrappedException
    from azure.devops.exceptions import AzureDevOpsServiceError

    wrapped = WrappedException(message=message, type_key=key, inner_exception=None)
    error: Exception = AzureDevOpsServiceError(wrapped)
    return error


@pytest.mark.parametrize(
    ("key", "message", "kind", "transient"),
    [
        ("WorkItemUnauthorizedAccessException", "TF401232: x", WorkItemMissing, False),
        ("WorkItemTrackingQueryResultSizeLimitExceededException", "VS402337: x", TooManyHits, False),
        ("WorkItemPageSizeExceededException", "VS403474: x", BoardsRefused, False),
        ("RequestBlockedException", "TF400733: x", RateLimited, True),
        ("ProjectDoesNotExistWithNameException", "TF200016: x", ProjectMissing, False),
        ("VssInvalidPreviewVersionException", "x", BoardsRefused, False),
        ("UnauthorizedRequestException", "TF400813: x", SourceDenied, False),
        ("WorkItemTrackingQueryException", "TF51005: x", WiqlRefused, False),
        ("SomethingNewException", "TF51006: x", WiqlRefused, False),
        ("SomethingNewException", "x", BoardsRefused, False),
    ],
)
def test_errors_of_the_service_are_sorted_by_their_key(
    key: str, message: str, kind: type[LarderError], transient: bool
) -> None:
    error = translated(_service_error(key, message), "testing")

    assert type(error) is kind
    assert error.transient is transient
    assert error.fix
    assert "testing" in error.message
    assert error.__cause__ is None
    assert (error.retry_after is not None) is (kind is RateLimited)


def test_our_errors_survive_pickling_where_the_librarys_do_not() -> None:
    theirs = _service_error("ProjectDoesNotExistWithNameException")
    with pytest.raises(AttributeError):
        pickle.loads(pickle.dumps(theirs))  # noqa: S301 (our own bytes)

    ours = pickle.loads(pickle.dumps(translated(theirs, "testing")))  # noqa: S301 (ditto)

    assert isinstance(ours, ProjectMissing)


def _foreign_classes() -> list[type[Exception]]:
    import azure.devops.exceptions
    import msrest.exceptions
    import requests.exceptions

    modules: list[Any] = [azure.devops.exceptions, msrest.exceptions, requests.exceptions]
    found = [
        c
        for module in modules
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, Exception) and not issubclass(c, Warning)
    ]
    return sorted(set(found), key=lambda c: f"{c.__module__}.{c.__name__}")


@pytest.mark.parametrize("kind", _foreign_classes(), ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_no_error_class_of_the_libraries_is_left_untranslated(kind: type[Exception]) -> None:
    error = kind.__new__(kind, "text")
    vars(error).setdefault("message", "text")  # some show it and are not asked to make it here
    name = f"{kind.__module__}.{kind.__qualname__}"

    ours = translated(error, "testing")

    assert issubclass(kind, FOREIGN) or name in FOREIGN_ERRORS, f"{name} needs a row in FOREIGN_ERRORS"
    assert isinstance(ours, LarderError)
    assert ours.fix


def test_an_error_of_requests_inside_one_of_the_library_is_found() -> None:
    import requests
    from msrest.exceptions import ClientRequestError

    wrapped = ClientRequestError("Error occurred in request.", requests.exceptions.SSLError("certificate"))

    assert isinstance(translated(wrapped, "testing"), SourceDenied)
    slow = ClientRequestError("Error occurred in request.", requests.exceptions.ReadTimeout("secret-pat"))
    ours = translated(slow, "testing")
    assert isinstance(ours, SourceUnavailable)
    assert "secret-pat" not in str(ours)


def test_every_known_key_says_what_to_do() -> None:
    assert all(found and fix for _, found, fix in FOREIGN_ERRORS.values())


def test_one_comment_list_that_cannot_be_had_does_not_stop_the_others(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 3)
    for n in (1, 2, 3):
        services.comment(n, "word " + ("x" * 300_000 if n == 2 else ""))
    access = Access(base_url=services.url, most_bytes=100_000)

    store = Store()
    store.sync(source_for(services, access=access))

    assert set(store.documents) == {"1", "3"}
    assert [p.external_id for p in store.failed] == ["2"]


def test_comments_of_an_item_that_vanished_are_none(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 2)
    services.comment(2, "word")
    services.on_request(lambda seen: services.forbid(2) if "/comments" in seen.path else None)

    store = Store()
    store.sync(source_for(services))

    assert set(store.documents) == {"1", "2"}
    assert "word" not in store.documents["2"].text


def test_a_server_without_our_interface_is_told_apart_from_a_broken_one(services: FakeAzureDevOps) -> None:
    routes = json.dumps({"count": 1, "value": [{"id": "x", "area": "y", "resourceName": "z"}]})
    services.faults.next(
        Fault.status(200, body=routes, content_type="application/json"), when=_at("/_apis"), times=None
    )
    with pytest.raises(SourceDenied) as caught:
        list(source_for(services).pages(None))

    assert "organization" in caught.value.fix
