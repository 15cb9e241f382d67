"""A pretended Azure DevOps Boards over real HTTP, Services or Server, with its limits, doors and errors.

    with FakeAzureDevOps(organization="acme", pat="secret") as fake:
        fake.add_project("Web")
        bug = fake.add_item("Web", "Bug", "It crashes", repro_steps="<div>Click</div>", tags=["a", "b"])
        Connection(base_url=fake.url, creds=BasicAuthentication("", "secret"))

It is strict where the service is: a client that ignores a token, a limit or a version gets wrong data or a
refusal. What changes the boards is in `azure_devops_model.Boards`; set `AZURE_DEVOPS_CACHE_DIR` before the
client is imported, and remember that it keeps what it discovered in class-level memory by address.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from tests.fakes.azure_devops_call import Call, check_version, collection
from tests.fakes.azure_devops_endpoints import Endpoints
from tests.fakes.azure_devops_errors import Refusal, error_json, no_project, not_allowed, throttled
from tests.fakes.azure_devops_model import Boards
from tests.fakes.azure_devops_places import Limits
from tests.fakes.azure_devops_resources import RESOURCES, Resource
from tests.fakes.server import Answer, FakeServer, Fault, Seen

__all__ = ["FakeAzureDevOps", "Limits", "too_many_requests"]

SIGN_IN = """<!DOCTYPE html>
<html lang="en-US"><head><title>Azure DevOps Services | Sign In</title></head>
<body><form action="/_signin" method="post"><input name="login"></form></body></html>
"""
NO_PAGE = "<html><head><title>The resource cannot be found.</title></head><body>404</body></html>"
EXPIRED = "Access Denied: The Personal Access Token used has expired."
TOO_LONG = "<html><body><h2>Request URL Too Long</h2><hr><p>HTTP Error 414.</p></body></html>"
HTML = "text/html; charset=utf-8"

TokenState = Literal["valid", "expired", "unscoped"]


def too_many_requests(retry_after: str | None = "30", **headers: str) -> Fault:
    """429 with TF400733; further headers such as X_RateLimit_Reset="1700000000"."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if retry_after is not None:
        sent["Retry-After"] = retry_after
    body = json.dumps(throttled().json)
    return Fault.status(429, headers=sent, body=body, content_type="application/json; charset=utf-8")


class FakeAzureDevOps(Boards, FakeServer):
    """Azure DevOps Services at `/{organization}`, or a Server at `/tfs/{server_collection}`."""

    def __init__(
        self,
        *,
        organization: str = "acme",
        pat: str = "secret-pat",
        server_collection: str | None = None,
        newest: str | None = None,
        zone: str = "America/Los_Angeles",
    ) -> None:
        """`newest` is the highest API version (7.2 for Services, 7.0 for a Server); `zone` the account's."""
        Boards.__init__(self)
        FakeServer.__init__(self)
        self.organization = organization
        self.pat = pat
        self.base = f"/tfs/{server_collection}" if server_collection else f"/{organization}"
        self.newest = newest or ("7.0" if server_collection else "7.2")
        self.zone = zone
        self.limits = Limits()
        self.token: TokenState = "valid"
        self.sign_in_html = False
        """A sign-in page (203) for every request, whatever it carries."""
        self.discovery_open = False
        """OPTIONS and ResourceAreas are answered without a token."""
        self.bom = False
        """A byte order mark before the JSON of errors."""
        self.load_headers: dict[str, str] = {}
        """Sent with every good answer, such as Retry-After and X-RateLimit-Remaining."""
        self._hosted = server_collection is None
        self._callback: Callable[[Seen], object] | None = None
        self._session = str(uuid.uuid4())
        self._routes = [(resource.pattern(), resource) for resource in RESOURCES]

    @property
    def url(self) -> str:
        """What a client is configured with: the organisation's or the collection's address."""
        return self.address + self.base

    def on_request(self, callback: Callable[[Seen], object] | None) -> None:
        """Called before each answer is made, to change the boards between two pages; None: no more."""
        self._callback = callback

    def answer(self, seen: Seen) -> Answer:
        if self._callback is not None:
            self._callback(seen)
        with self.lock:
            try:
                answer = self._answer(seen)
            except Refusal as refusal:
                answer = self._refused(refusal)
        activity = str(uuid.uuid4())
        traces = {"X-TFS-Session": self._session, "ActivityId": activity, "X-VSS-E2EID": activity}
        load = self.load_headers if answer.status == 200 else {}
        return replace(answer, headers={**traces, **load, **answer.headers})

    def _answer(self, seen: Seen) -> Answer:
        if len(seen.target) > self.limits.url:
            return Answer(status=414, body=TOO_LONG, content_type=HTML)
        if seen.path.lower() == "/_signin":
            return Answer(body=SIGN_IN, content_type=HTML)
        place = self._below(seen.path)
        if place is None:
            return Answer(status=404, body=NO_PAGE, content_type=HTML)
        around = place.lower() in ("/_apis", "/_apis/resourceareas", "/_apis/connectiondata")
        barred = None if around and self.discovery_open else self._barred(seen)
        if barred is not None:
            return barred
        if place.lower() == "/_apis" and seen.method == "OPTIONS":
            return collection([resource.json(self.newest) for resource in RESOURCES])
        return self._routed(seen, place)

    def _below(self, path: str) -> str | None:
        """The part behind the organisation, in any case; None if it is elsewhere."""
        path, base = path.rstrip("/"), self.base
        if path.lower() != base.lower() and not path.lower().startswith(base.lower() + "/"):
            return None
        return path[len(base) :]

    def _barred(self, seen: Seen) -> Answer | None:
        """What the door says; None: come in."""
        quiet = seen.headers.get("X-TFS-FedAuthRedirect", "").lower() == "suppress"
        sent = _password(seen)
        challenge = {"WWW-Authenticate": 'Basic realm="https://app.vssps.visualstudio.com/"'}
        if self.sign_in_html:
            return Answer(status=203, body=SIGN_IN, content_type=HTML)
        if sent is None and not quiet:
            return Answer(status=302, headers={"Location": f"{self.address}/_signin?realm=dev.azure.com"})
        if sent != self.pat:
            if quiet:
                return Answer(status=401, headers=challenge)
            return Answer(status=203, body=SIGN_IN, content_type=HTML)
        if self.token == "expired":
            return Answer(
                status=401, headers=challenge, body=EXPIRED, content_type="text/plain; charset=utf-8"
            )
        if self.token == "unscoped" and "/_apis/wit" in seen.path.lower():
            raise not_allowed()
        return None

    def _routed(self, seen: Seen, place: str) -> Answer:
        found = self._route(place)
        if found is None:
            text = f"The controller for path '{place}' was not found or does not implement IController."
            return Answer(status=404, body=text, content_type="text/plain; charset=utf-8")
        resource, args = found
        if seen.method not in resource.methods:
            text = f"The requested resource does not support http method '{seen.method}'."
            return Answer(status=405, body=json.dumps({"Message": text}), content_type="application/json")
        check_version(seen, preview=resource.preview, newest=self.newest)
        name = args.get("project")
        project = self.project(name) if name else None
        if name and (project is None or project.hidden):
            raise no_project(name)
        call = Call(seen=seen, args=args, project=project, newest=self.newest)
        endpoints = Endpoints(self, self.url, self.limits, self.zone, hosted=self._hosted)
        answer: Answer = getattr(endpoints, resource.handler)(call)
        return answer

    def _route(self, place: str) -> tuple[Resource, dict[str, str]] | None:
        for pattern, resource in self._routes:
            match = re.fullmatch(pattern, place)
            if match:
                return resource, {key: value for key, value in match.groupdict().items() if value is not None}
        return None

    def _refused(self, refusal: Refusal) -> Answer:
        text = json.dumps(error_json(refusal.type_key, refusal.message), ensure_ascii=False)
        return Answer(
            status=refusal.status,
            headers=refusal.headers,
            body=("\ufeff" if self.bom else "") + text,
            content_type="application/json; charset=utf-8",
        )


def _password(seen: Seen) -> str | None:
    """The password of a basic login with an empty user name; None without any login."""
    scheme, _, value = seen.headers.get("Authorization", "").partition(" ")
    if not value:
        return None
    try:
        user, _, password = base64.b64decode(value).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return password if scheme.lower() == "basic" and not user else ""
