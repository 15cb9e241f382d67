"""Webhooks: who sent an event, and which items it names, in the forms that services send."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.confluence.options import ConfluenceOptions
from connectors.web.hooks import event_id, is_proved

SECRET = "a-secret-of-the-tests"
BODY = b'{"page": {"id": 98305}}'
WIKI = ConfluenceOptions(name="wiki", base_url="https://example.atlassian.net/wiki")
BOARDS = AzureDevOpsOptions(name="boards", organization="example", projects=("Shop",))


def signed(body: bytes = BODY, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def standard(body: bytes, key: bytes) -> dict[str, str]:
    digest = base64.b64encode(hmac.new(key, b"msg_1.1790000000." + body, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1790000000",
        "webhook-signature": f"v1,{'A' * 43}= v1,{digest}",
    }


@pytest.mark.parametrize(
    "headers",
    [
        {"x-hub-signature-256": f"sha256={signed()}"},  # GitHub
        {"x-hub-signature": f"sha256={signed()}"},  # Jira, Confluence Data Center
        {"linear-signature": signed()},
        {"x-notion-signature": f"sha256={signed()}"},
        {"x-gitlab-token": SECRET},
        {"x-larder-token": SECRET},
        {"authorization": f"Bearer {SECRET}"},
        {"authorization": basic("anybody", SECRET)},  # Azure DevOps
        standard(BODY, SECRET.encode()),
    ],
)
def test_the_secret_proves_an_event_however_the_service_sends_it(headers: dict[str, str]) -> None:
    assert is_proved(SECRET, headers, BODY)
    assert not is_proved("another-secret-of-tests", headers, BODY)


def test_the_secret_of_standard_webhooks_is_base64() -> None:
    key = b"0123456789abcdef0123"
    assert is_proved("whsec_" + base64.b64encode(key).decode(), standard(BODY, key), BODY)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-hub-signature-256": ""},
        {"x-hub-signature-256": f"sha256={signed(b'another body')}"},
        {"x-hub-signature-256": f"sha1={signed()}"},
        {"x-hub-signature-256": "sha256=\u00e4"},
        # A wrong signature is not made good by a token beside it.
        {"x-hub-signature-256": f"sha256={signed(b'')}", "x-gitlab-token": SECRET},
        {"x-gitlab-token": ""},
        {"x-gitlab-token": "\u00e4"},
        {"authorization": "Basic !!!"},
        {"authorization": basic(SECRET, "")},
        {"authorization": "Bearer"},
        {**standard(BODY, SECRET.encode()), "webhook-timestamp": "1790000001"},
        {**standard(BODY, SECRET.encode()), "webhook-signature": "v2,abc nonsense ,"},
    ],
)
def test_without_the_secret_nothing_is_proved(headers: dict[str, str]) -> None:
    assert not is_proved(SECRET, headers, BODY)


def test_an_event_that_is_sent_once_more_has_the_same_id() -> None:
    assert event_id({"x-github-delivery": "72d3162e"}, {}) == "72d3162e"
    assert event_id({}, {"eventType": "workitem.updated", "id": "4b16"}) == "4b16"
    assert event_id({}, {"id": 17, "page": {}}) == "", "an id of something else"
    assert len(event_id({"webhook-id": "x" * 5000}, {})) == 200


CONFLUENCE: list[tuple[dict[str, Any], list[str]]] = [
    ({"event": "page_updated", "page": {"id": 98305, "spaceKey": "ENG"}}, ["98305"]),
    ({"event": "page_trashed", "page": {"id": 98305}}, ["98305"]),
    ({"event": "blog_created", "blog": {"id": 7}}, ["7"]),
    ({"event": "comment_created", "comment": {"id": 65635, "parent": {"id": 65603}}}, ["65603"]),
    (
        {"event": "attachment_created", "attachments": [{"id": 31}], "attachedTo": {"id": 12}},
        ["12", "31"],
    ),
    ({"event": "label_added", "label": {"name": "adr"}, "labeled": {"id": 12}}, ["12"]),
    ({"event": "content_permissions_updated", "content": {"id": 12}}, ["12"]),
    ({"event": "space_updated", "space": {"key": "ENG"}}, []),
    ({"ids": ["1", 2, "2", True, None, {"id": 3}, ""]}, ["1", "2"]),
    ({"page": ["98305"], "attachments": "x", "comment": {"parent": 5}}, []),
]


@pytest.mark.parametrize(("event", "ids"), CONFLUENCE)
def test_an_event_of_confluence_names_pages(event: dict[str, Any], ids: list[str]) -> None:
    assert WIKI.hinted_ids(event) == ids


AZURE_DEVOPS: list[tuple[dict[str, Any], list[str]]] = [
    ({"eventType": "workitem.created", "resource": {"id": 5, "rev": 1}}, ["5"]),
    ({"eventType": "workitem.updated", "resource": {"id": 2, "workItemId": 5, "rev": 3}}, ["5"]),
    ({"eventType": "workitem.deleted", "resource": {"id": 5}}, ["5"]),
    ({"eventType": "git.push", "resource": {"pushId": 14}}, []),
    ({"eventType": "build.complete", "resource": {"id": 5}}, []),
    ({"eventType": "workitem.updated", "resource": None}, []),
    ({"ids": [17]}, ["17"]),
]


@pytest.mark.parametrize(("event", "ids"), AZURE_DEVOPS)
def test_an_event_of_azure_devops_names_work_items(event: dict[str, Any], ids: list[str]) -> None:
    assert BOARDS.hinted_ids(event) == ids


def test_one_event_names_a_thousand_items_at_most() -> None:
    assert len(WIKI.hinted_ids({"ids": [*range(5000)]})) == 1000
