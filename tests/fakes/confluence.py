"""A Confluence for tests, Cloud or Server/Data Center: a real HTTP server over a small model that honours the query.

    with FakeConfluence("cloud") as fake:
        fake.add_space("ENG")
        page = fake.add_page("ENG", "Start", "<p>Hello</p>")
        fake.advance(minutes=5)
        fake.edit(page, "<p>Hello again</p>")
        requests.get(f"{fake.base}/rest/api/content/search?cql=type=page", auth=fake.basic)

It is as unhelpful as the real one: `confluence_checks` shows what goes wrong with a careless reader.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import timedelta, timezone
from typing import Literal

from pipeline.documents import Json
from tests.fakes.confluence_cql import CqlError
from tests.fakes.confluence_model import ConfluenceModel
from tests.fakes.confluence_paging import BadPaging
from tests.fakes.confluence_rendering import BrokenBody, Rendering, account_id
from tests.fakes.confluence_v1 import V1, RefusedV1
from tests.fakes.confluence_v2 import V2
from tests.fakes.server import Answer, FakeServer, Seen

__all__ = ["FakeConfluence"]

_JAVA = "com.atlassian.confluence.api.service.exceptions"
_REASONS = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}
_JAVA_NAMES = {
    400: "BadRequestException",
    403: "PermissionException",
    404: "NotFoundException",
    410: "GoneException",
}
_LONGEST_ADDRESS = 8000
_GONE = re.compile(r"content|space(/[^/]+)?|content/(?!search$)[^/]+(/(child/\w+|label|history|version))?")
"""v1 endpoints with a v2 successor, which Cloud has taken away."""


class FakeConfluence(ConfluenceModel, FakeServer):
    """One Confluence with one account; the control methods are those of ConfluenceModel.

    Args:
        kind: `cloud` or `server`.
        context: Path before `/rest/api`; `/wiki` on Cloud, none on Server unless given.
        account: The account's name in the model: restrictions name it so.
        account_time_zone: How date literals in CQL are read. Cloud shows it in `user/current`.
        server_offset: What timestamps of a Server end with.
        gone: v1 endpoints with a successor answer 410 (Cloud only).
    """

    def __init__(
        self,
        kind: Literal["cloud", "server"] = "cloud",
        *,
        context: str | None = None,
        account: str = "bot",
        account_time_zone: str = "America/New_York",
        hide_zone: bool = False,
        server_offset: str = "+02:00",
        gone: bool = True,
    ) -> None:
        FakeServer.__init__(self)
        ConfluenceModel.__init__(self, self.lock, account, account_time_zone)
        self.kind = kind
        self.cloud = kind == "cloud"
        self.context = ("/wiki" if self.cloud else "") if context is None else context
        self.email = f"{account}@example.org"
        """User name for basic login on Cloud."""
        self.token = "token-of-the-account"
        """API token (Cloud, basic) or personal access token (Server, Bearer); assign another to revoke it."""
        self.password = "password-of-the-account"
        """For basic login on Server, with `account` as the user name."""
        self.hide_zone = hide_zone
        self.gone = gone
        self._callback: Callable[[Seen], None] | None = None
        offset = _offset(server_offset)
        self._rendering = Rendering(self, cloud=self.cloud, context=self.context, offset=offset)
        self._v1 = V1(self, self._rendering)
        self._v2 = V2(self, self._rendering)

    @property
    def base(self) -> str:
        """Address with context path: what `baseUrl` should be."""
        return f"{self.address}{self.context}"

    @property
    def basic(self) -> tuple[str, str]:
        """User name and secret that work."""
        return (self.email, self.token) if self.cloud else (self.account, self.password)

    def user_id(self, name: str) -> str:
        """How answers name a user: account id, or user key."""
        return account_id(name) if self.cloud else f"key-of-{name}"

    def on_request(self, callback: Callable[[Seen], None] | None) -> None:
        """Called after each answer is made, before it is sent; its changes are seen by the next request."""
        self._callback = callback

    def answer(self, seen: Seen) -> Answer:
        """Address, login, then the endpoint."""
        with self.lock:
            self._rendering.base = self.base
            made = self._answer(seen)
            if self._callback is not None:
                self._callback(seen)
            return made

    def _answer(self, seen: Seen) -> Answer:
        if len(seen.target) > _LONGEST_ADDRESS:
            return _html(414 if self.cloud else 400, "Request-URI Too Long")
        if not seen.path.startswith(f"{self.context}/"):
            return _html(404, "Page not found")
        try:
            self._login(seen)
            return self._endpoint(seen.path.removeprefix(self.context).strip("/"), seen)
        except RefusedV1 as refused:
            return self._error(refused.status, refused.message)
        except (CqlError, BadPaging) as error:
            return self._error(400, str(error))
        except BrokenBody:
            return self._error(500, "java.lang.NullPointerException")

    def _login(self, seen: Seen) -> None:
        scheme, _, secret = seen.headers.get("Authorization", "").partition(" ")
        if self.cloud and not scheme:
            raise RefusedV1(403, "Request is not permitted: not permitted to use Confluence")
        if self.cloud and scheme == "Bearer":
            raise RefusedV1(403, "Failed to parse Connect Session Auth Token")
        bearer = scheme == "Bearer" and secret == self.token
        if not bearer and not (scheme == "Basic" and _decoded(secret) == ":".join(self.basic)):
            raise RefusedV1(401, "")

    def _endpoint(self, path: str, seen: Seen) -> Answer:
        if path.startswith("api/v2/") and self.cloud:
            return self._v2.answer(path.removeprefix("api/v2/"), seen)
        if path.startswith("rest/api/"):
            return self._rest(path.removeprefix("rest/api/"), seen)
        if match := re.fullmatch(r"download/attachments/([^/]+)/(.+)", path):
            return self._v1.download(match[1], match[2]) or _html(404, "Page not found")
        if match := re.fullmatch(r"media/([^/]+)/binary", path):
            return self._v1.media(match[1])
        return _html(404, "Page not found")

    def _rest(self, path: str, seen: Seen) -> Answer:
        if seen.method != "GET":
            raise RefusedV1(405, "Method Not Allowed")
        if self.cloud and self.gone and _GONE.fullmatch(path):
            raise RefusedV1(410, "This deprecated endpoint has been removed.")
        return self._v1.answer(path, seen)

    def _error(self, status: int, message: str) -> Answer:
        if status == 401 or (status == 500 and self.cloud):
            return _html(status, "Unauthorized" if status == 401 else "Internal Server Error")
        data = {"authorized": status not in (403, 404), "valid": True, "errors": [], "successful": False}
        shown: Json = {"statusCode": status, "data": data, "message": message}
        if not self.cloud:
            shown["reason"] = _REASONS.get(status, "Internal Server Error")
        elif status in _JAVA_NAMES:
            shown["message"] = f"{_JAVA}.{_JAVA_NAMES[status]}: {message}"
        return Answer(status=status, json=shown)


def _decoded(secret: str) -> str:
    try:
        return base64.b64decode(secret, validate=True).decode()
    except ValueError:
        return ""


def _offset(text: str) -> timezone:
    hours, minutes = text[1:].split(":")
    delta = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-delta if text.startswith("-") else delta)


def _html(status: int, title: str) -> Answer:
    page = f"<!DOCTYPE html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    headers = {"WWW-Authenticate": 'Basic realm="protected-area"'} if status == 401 else {}
    return Answer(status=status, body=page, content_type="text/html;charset=UTF-8", headers=headers)
