"""The console: HTML pages, rendered on the server with the functions behind the API."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Depends, Form, Header, Request, Response, UploadFile
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from connectors.documents.values import parse_json
from pipeline.access import OPERATE, READ, WRITE, Caller
from pipeline.documents import Kind
from pipeline.documents.plain_text import plural
from pipeline.enrichment import report
from pipeline.enrichment.text import passage
from pipeline.errors import Forbidden, LarderError, NotFound, RequestRejected, TokenRefused
from pipeline.errors.http_rules import web_address
from pipeline.ledger import storable
from pipeline.search import Hit
from pipeline.search.records import Filter, SearchRequest
from workers.api.callers import COOKIE, CurrentRuntime, cookie_of, prove_caller
from workers.api.enrichment import client_for, items_of
from workers.api.problems import message_for_callers
from workers.app import operations
from workers.app.feedback import mark_as
from workers.app.health.judgement import INSTALLATION
from workers.app.search import document_as, search_as
from workers.app.status import (
    changes_of,
    letters_of,
    operate_source,
    problems_of,
    projects_of,
    recent,
    sources_of,
)
from workers.runtime import acting_as
from workers.step4_file import is_text, item_of_text

PAGES = Path(__file__).parent / "pages"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
PASSAGE = 420
"""Characters of a hit's passage."""
MAX_TEXT = 100_000
"""Characters of a document's text on its page; hostile texts of this length take 5 s to render."""
HITS = 10
RECENT_CHANGES = 5
"""Recently changed documents on the first page."""
SCORE_PARTS = {
    "vector_part": "meaning",
    "keyword_part": "rare words in common",
    "title_part": "title",
    "covered_part": "all words are there",
    "rerank_part": "second look",
    "outdated_part": "no longer holds",
    "feedback_part": "what people said",
}

router = APIRouter(prefix="/console", include_in_schema=False)
pages = Environment(loader=PackageLoader("workers.api", "pages"), autoescape=True, undefined=StrictUndefined)
pages.filters |= {"zip": zip, "plural": plural}
pages.filters["day"] = lambda moment: f"{moment:%Y-%m-%d}"
pages.filters["moment"] = lambda moment: f"{moment:%Y-%m-%d %H:%M} UTC"
pages.tests["web"] = web_address


def _score_parts(hit: Hit) -> Iterator[tuple[str, float]]:
    for name, label in SCORE_PARTS.items():
        value = getattr(hit.explanation, name, 0.0)
        if value:
            yield label, value


pages.filters["score_parts"] = _score_parts


class Session:
    """A logged-in caller, and the rendering of their pages."""

    def __init__(self, request: Request, caller: Caller, token: str) -> None:
        self.request = request
        self.caller = caller
        # Derived from the token, which pages of other sites do not know.
        self.csrf = hashlib.sha256(b"csrf:" + token.encode()).hexdigest()

    def page(self, name: str, page: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render the template `name`; `page` is the active entry of the navigation."""
        return _rendered(self.request, name, status, caller=self.caller, csrf=self.csrf, page=page, **values)

    def checked(self, csrf: str, permission: str = READ) -> None:
        """Raises Forbidden unless the form belongs to this session and the caller has the permission."""
        if not hmac.compare_digest(csrf.encode(), self.csrf.encode()):
            raise Forbidden("the form does not belong to this session; load the page again")
        self.caller.require(permission)


def _rendered(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    page_values = {"caller": None, "csrf": "", "page": "", "problem": "", "done": "", "refresh": 0, **values}
    body = pages.get_template(name).render(root=request.scope.get("root_path", ""), **page_values)
    return HTMLResponse(body, status, {"Content-Security-Policy": POLICY})


def entered(request: Request) -> RedirectResponse:
    """Redirect from the root address to the console."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/console")


class LoggedOut(Exception):
    """The request has no session."""


def _session(
    request: Request, logged_in: Annotated[tuple[Caller, str] | None, Depends(cookie_of)]
) -> Session:
    if logged_in is None:
        raise LoggedOut
    return Session(request, *logged_in)


Logged = Annotated[Session, Depends(_session)]
Csrf = Annotated[str, Form()]
Text = Annotated[str, Form()]


def logged_out(request: Request, _error: Exception) -> Response:
    """Render the login page."""
    return _rendered(request, "login.html", 401)


def problem(request: Request, status: int, detail: str) -> Response:
    """Render an error as a page."""
    return _rendered(request, "base.html", status, problem=detail[:1].upper() + detail[1:])


def _to(request: Request, path: str) -> RedirectResponse:
    return RedirectResponse(f"{request.scope.get('root_path', '')}/console{path}", 303)


@router.post("/login")
def login(
    request: Request, token: Text, sec_fetch_site: Annotated[str, Header()] = "same-origin"
) -> Response:
    """Store the token in a cookie that scripts cannot read."""
    # Another site could log people in under an account of its choice.
    if sec_fetch_site not in ("same-origin", "none"):
        raise Forbidden("the form does not belong to this console; load the page again")
    try:
        prove_caller(request, token.strip())
    except TokenRefused as error:
        return _rendered(request, "login.html", 401, problem=error.message)
    answer = _to(request, "")
    secure, path = request.url.scheme == "https", f"{request.scope.get('root_path', '')}/console"
    answer.set_cookie(COOKIE, token.strip(), path=path, secure=secure, httponly=True, samesite="strict")
    return answer


@router.post("/logout")
def logout(request: Request, session: Logged, csrf: Csrf) -> Response:
    """Delete the cookie."""
    session.checked(csrf)
    answer = _to(request, "")
    answer.delete_cookie(COOKIE, path=f"{request.scope.get('root_path', '')}/console")
    return answer


@router.get("/console.{kind}")
def asset(kind: str) -> Response:
    """Style sheet and script."""
    media_types = {"css": "text/css", "js": "text/javascript"}
    if kind not in media_types:
        return Response(status_code=404)
    return FileResponse(PAGES / f"console.{kind}", media_type=media_types[kind])


@router.get("")
def search(
    session: Logged, runtime: CurrentRuntime, q: str = "", kind: str = "", project: str = "", done: str = ""
) -> Response:
    """The first page: the search form, hits, and recent changes."""
    page_values: dict[str, Any] = {"q": q, "kind": kind, "project": project, "results": None, "passages": ()}
    page_values |= {"sources": (), "changed": ()}
    page_values |= {"projects": projects_of(runtime, session.caller), "done": "Noted." if done else ""}
    if q.strip():
        kinds = (Kind(kind),) if kind in set(Kind) else ()
        request = SearchRequest(text=q[:10_000], k=HITS, filter=Filter(kinds=kinds), explain=True)
        try:
            results = search_as(runtime, session.caller, request, [project] if project else [])
        except LarderError as error:
            return session.page("search.html", "Search", **page_values, problem=message_for_callers(error))
        page_values |= {
            "results": results,
            "passages": [_marked(hit.chunk.content, q) for hit in results.hits],
        }
    else:
        page_values |= {"sources": _with_problems(runtime, session)}
        page_values |= {"changed": changes_of(runtime, session.caller)[:RECENT_CHANGES]}
    return session.page("search.html", "Search", **page_values)


def _marked(content: str, question: str) -> Sequence[tuple[str, bool]]:
    best = passage(content, question, length=PASSAGE)
    pieces, end = [], 0
    for start, stop in best.marks:
        pieces += [(best.text[end:start], False), (best.text[start:stop], True)]
        end = stop
    return [*pieces, (best.text[end:], False)]


@router.post("/feedback")
def feedback(
    session: Logged, runtime: CurrentRuntime, request: Request, csrf: Csrf, q: Text, ref: Text, verdict: Text
) -> Response:
    """Mark a document as useful or noise for the query."""
    session.checked(csrf, WRITE)
    mark_as(
        runtime, session.caller, {"item": q, "ref": ref, "verdict": verdict, "project": None, "source": None}
    )
    return _to(request, f"?{urlencode({'q': q, 'done': 1})}")


@router.get("/documents/{document_id}")
def document(session: Logged, runtime: CurrentRuntime, document_id: UUID) -> Response:
    """A document with its whole text."""
    shown_document = document_as(runtime, session.caller, document_id)
    whole = shown_document["text"] or ""
    text = Markup(report.rendered(whole[:MAX_TEXT]))  # noqa: S704 (rendered without HTML of the text)
    return session.page("document.html", "", document=shown_document, text=text, more=len(whole[MAX_TEXT:]))


@router.get("/enrich")
def ask(session: Logged, runtime: CurrentRuntime) -> Response:
    """The form of Step 4."""
    return session.page("enrich.html", "Step 4", job=None, projects=projects_of(runtime, session.caller))


@router.post("/enrich")
def enrich(
    session: Logged,
    runtime: CurrentRuntime,
    request: Request,
    csrf: Csrf,
    title: Text = "",
    text: Text = "",
    project: Text = "",
    file: UploadFile | None = None,
) -> Response:
    """Submit one item and redirect to its answer."""
    session.checked(csrf)
    try:
        item = _item(title, text, file.file.read() if file else b"")
        client = client_for(request, runtime, session.caller)
        job = client.submit(storable(item), project=project or None, caller=session.caller)
    except LarderError as error:
        page_values = {
            "job": None,
            "projects": projects_of(runtime, session.caller),
            "problem": message_for_callers(error),
        }
        return session.page("enrich.html", "Step 4", 422, **page_values)
    return _to(request, f"/enrich/{job}")


def _item(title: str, text: str, sent: bytes) -> Mapping[str, Any]:
    """The backlog item of a form: a file, JSON or plain text."""
    words = sent.decode("utf-8", "replace") if sent.strip() else text
    if is_text(words):
        return {"pbi": item_of_text(words, title)}
    items = items_of(parse_json(words, "the text"))
    if not items:
        raise RequestRejected("the text contains no backlog item")
    return items[0]


@router.get("/enrich/{job_id}")
def answer(session: Logged, runtime: CurrentRuntime, request: Request, job_id: UUID) -> Response:
    """State of a job, or its answer as a report."""
    job = client_for(request, runtime, session.caller).job(job_id, caller=session.caller)
    page_values: dict[str, Any] = {"job": job, "report": "", "markdown": "", "refresh": 0 if job.ended else 2}
    if job.state == "done":
        item = {"pbi": job.request["pbi"], "scores": {}, "context": job.result}
        page_values["markdown"] = report.document([item], "md")
        page_values["report"] = Markup(report.rendered(page_values["markdown"]))  # noqa: S704 (all texts in it are escaped)
    return session.page("enrich.html", "Step 4", **page_values)


@router.get("/sources")
def sources(session: Logged, runtime: CurrentRuntime, request: Request, done: str = "") -> Response:
    """Sources; for operators also dead letters and failed checks."""
    operates = session.caller.may(OPERATE)
    page_values: dict[str, Any] = {"operates": operates, "letters": (), "usage": (), "wrong": ()}
    page_values["done"] = "Done." if done else ""
    if operates:
        letters, usage = letters_of(runtime, session.caller)
        checks = recent(request.app.state.watcher)["next"]
        wrong = [one for one in checks if one["status"] == "error" and one["check"] in INSTALLATION]
        page_values |= {"letters": letters, "usage": usage, "wrong": wrong}
    source_rows = _with_problems(runtime, session)
    moving = any(one["run"] and not one["run"].finished_at for one in source_rows)
    return session.page(
        "sources.html", "Sources", sources=source_rows, **page_values, refresh=5 if moving else 0
    )


@router.get("/sources/{name}")
def source_problems(session: Logged, runtime: CurrentRuntime, name: str) -> Response:
    """Failed, excluded and noted items of a source, with reasons."""
    source = next((one for one in _with_problems(runtime, session) if one["name"] == name), None)
    if source is None or not source["counts"]:
        raise NotFound("there is no source of this name whose problems you may see")
    return session.page("problems.html", "Sources", source=source)


def _with_problems(runtime: CurrentRuntime, session: Session) -> list[dict[str, Any]]:
    problems = problems_of(runtime, session.caller)
    none: dict[str, Any] = {"counts": {}, "problems": [], "left_out": {}}
    return [{**one, **problems.get(one["id"], none)} for one in sources_of(runtime, session.caller)]


@router.post("/release")
def release(session: Logged, runtime: CurrentRuntime, request: Request, csrf: Csrf, source: Text) -> Response:
    """Approve the pending deletions of a source."""
    session.checked(csrf, OPERATE)
    operate_source(runtime, session.caller, source, partial(operations.release, runtime))
    return _to(request, "/sources?done=1")


@router.post("/replay")
def replay(
    session: Logged, runtime: CurrentRuntime, request: Request, csrf: Csrf, letter: Annotated[int, Form()]
) -> Response:
    """Try a dead letter's document again."""
    session.checked(csrf, OPERATE)
    chosen = [one for one in letters_of(runtime, session.caller)[0] if one.id == letter]
    with acting_as(session.caller.subject):
        operations.replay(runtime, chosen)
    return _to(request, "/sources?done=1")


@router.get("/changes")
def changes(session: Logged, runtime: CurrentRuntime) -> Response:
    """Documents indexed today."""
    return session.page("changes.html", "Changes", documents=changes_of(runtime, session.caller))
