"""The console: pages for people, made on the server from the functions that the API calls."""

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
from pipeline.documents import Kind, plural, web_address
from pipeline.enrichment import report
from pipeline.enrichment.text import passage
from pipeline.errors import Forbidden, LarderError, NotFound, RequestRejected, TokenRefused
from pipeline.ledger import storable
from pipeline.search import Hit
from pipeline.search.records import Filter, SearchRequest
from workers.admin import operations
from workers.admin.feedback import mark_as
from workers.admin.judgement import INSTALLATION
from workers.admin.status import (
    changes_of,
    letters_of,
    operate_source,
    problems_of,
    projects_of,
    recent,
    sources_of,
)
from workers.api.callers import COOKIE, Parts, cookie_of, prove_caller
from workers.api.enrichment import client_for, items_of
from workers.api.problems import told_to_callers
from workers.enrichment.step4_file import is_text, item_of_text
from workers.runtime import acting_as
from workers.search import document_as, search_as

PAGES = Path(__file__).parent / "pages"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
PASSAGE = 420
"""Characters of a hit's text that are shown."""
LONGEST_SHOWN = 100_000
"""Characters of a document's text on its page: more than anybody reads, and evil ones take 5 s to be made a page of."""
SHOWN = 10
CHANGES_SHOWN = 5
"""Documents on the first page."""
PARTS = {
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


def _parts(hit: Hit) -> Iterator[tuple[str, float]]:
    for name, label in PARTS.items():
        value = getattr(hit.explanation, name, 0.0)
        if value:
            yield label, value


pages.filters["parts"] = _parts


class Session:
    """Who is logged in, and how a page is shown to them."""

    def __init__(self, request: Request, caller: Caller, token: str) -> None:
        self.request = request
        self.caller = caller
        # Nobody else knows the token, so no page of another site can make this out.
        self.csrf = hashlib.sha256(b"csrf:" + token.encode()).hexdigest()

    def page(self, name: str, page: str, status: int = 200, **values: Any) -> HTMLResponse:
        """The page of this name; `page` is its name among the links."""
        return _rendered(self.request, name, status, caller=self.caller, csrf=self.csrf, page=page, **values)

    def checked(self, csrf: str, permission: str = READ) -> None:
        """Raises Forbidden unless the form was ours and the caller has the permission."""
        if not hmac.compare_digest(csrf.encode(), self.csrf.encode()):
            raise Forbidden("the form is not one of this session; load the page again")
        self.caller.require(permission)


def _rendered(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    told = {"caller": None, "csrf": "", "page": "", "problem": "", "done": "", "refresh": 0, **values}
    body = pages.get_template(name).render(root=request.scope.get("root_path", ""), **told)
    return HTMLResponse(body, status, {"Content-Security-Policy": POLICY})


def entered(request: Request) -> RedirectResponse:
    """Leads from the address itself, which a person types, to the console."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/console")


class LoggedOut(Exception):
    """There is no session."""


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
    """To the page where one logs in."""
    return _rendered(request, "login.html", 401)


def problem(request: Request, status: int, detail: str) -> Response:
    """What went wrong, as a page."""
    return _rendered(request, "base.html", status, problem=detail[:1].upper() + detail[1:])


def _to(request: Request, path: str) -> RedirectResponse:
    return RedirectResponse(f"{request.scope.get('root_path', '')}/console{path}", 303)


@router.post("/login")
def login(
    request: Request, token: Text, sec_fetch_site: Annotated[str, Header()] = "same-origin"
) -> Response:
    """Keep the token in a cookie that no script can read."""
    # Another site would have people ask under a name of its choice.
    if sec_fetch_site not in ("same-origin", "none"):
        raise Forbidden("the form is not one of this console; load the page again")
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
    """Forget the token."""
    session.checked(csrf)
    answer = _to(request, "")
    answer.delete_cookie(COOKIE, path=f"{request.scope.get('root_path', '')}/console")
    return answer


@router.get("/console.{kind}")
def asset(kind: str) -> Response:
    """The style, and the script that copies."""
    known = {"css": "text/css", "js": "text/javascript"}
    if kind not in known:
        return Response(status_code=404)
    return FileResponse(PAGES / f"console.{kind}", media_type=known[kind])


@router.get("")
def search(
    session: Logged, parts: Parts, q: str = "", kind: str = "", project: str = "", done: str = ""
) -> Response:
    """The first page: a question, and what answers it."""
    told: dict[str, Any] = {"q": q, "kind": kind, "project": project, "found": None, "passages": ()}
    told |= {"sources": (), "changed": ()}
    told |= {"projects": projects_of(parts, session.caller), "done": "Noted." if done else ""}
    if q.strip():
        kinds = (Kind(kind),) if kind in set(Kind) else ()
        request = SearchRequest(text=q[:10_000], k=SHOWN, filter=Filter(kinds=kinds), explain=True)
        try:
            found = search_as(parts, session.caller, request, [project] if project else [])
        except LarderError as error:
            return session.page("search.html", "Search", **told, problem=told_to_callers(error))
        told |= {"found": found, "passages": [_marked(hit.chunk.content, q) for hit in found.hits]}
    else:
        told |= {"sources": _with_problems(parts, session)}
        told |= {"changed": changes_of(parts, session.caller)[:CHANGES_SHOWN]}
    return session.page("search.html", "Search", **told)


def _marked(content: str, question: str) -> Sequence[tuple[str, bool]]:
    best = passage(content, question, length=PASSAGE)
    pieces, end = [], 0
    for start, stop in best.marks:
        pieces += [(best.text[end:start], False), (best.text[start:stop], True)]
        end = stop
    return [*pieces, (best.text[end:], False)]


@router.post("/feedback")
def feedback(
    session: Logged, parts: Parts, request: Request, csrf: Csrf, q: Text, ref: Text, verdict: Text
) -> Response:
    """A document is useful or noise for the question."""
    session.checked(csrf, WRITE)
    mark_as(
        parts, session.caller, {"item": q, "ref": ref, "verdict": verdict, "project": None, "source": None}
    )
    return _to(request, f"?{urlencode({'q': q, 'done': 1})}")


@router.get("/documents/{document_id}")
def document(session: Logged, parts: Parts, document_id: UUID) -> Response:
    """A document with its whole text."""
    found = document_as(parts, session.caller, document_id)
    whole = found["text"] or ""
    text = Markup(report.rendered(whole[:LONGEST_SHOWN]))  # noqa: S704 (made without HTML of the text's own)
    return session.page("document.html", "", document=found, text=text, more=len(whole[LONGEST_SHOWN:]))


@router.get("/enrich")
def ask(session: Logged, parts: Parts) -> Response:
    """The form of Step 4."""
    return session.page("enrich.html", "Step 4", job=None, projects=projects_of(parts, session.caller))


@router.post("/enrich")
def enrich(
    session: Logged,
    parts: Parts,
    request: Request,
    csrf: Csrf,
    title: Text = "",
    text: Text = "",
    project: Text = "",
    file: UploadFile | None = None,
) -> Response:
    """Ask for one item's context, and go to where the answer will be."""
    session.checked(csrf)
    try:
        item = _item(title, text, file.file.read() if file else b"")
        client = client_for(request, parts, session.caller)
        job = client.submit(storable(item), project=project or None, caller=session.caller)
    except LarderError as error:
        told = {
            "job": None,
            "projects": projects_of(parts, session.caller),
            "problem": told_to_callers(error),
        }
        return session.page("enrich.html", "Step 4", 422, **told)
    return _to(request, f"/enrich/{job}")


def _item(title: str, text: str, sent: bytes) -> Mapping[str, Any]:
    """The PBI of a form: a file, JSON, or words."""
    words = sent.decode("utf-8", "replace") if sent.strip() else text
    if is_text(words):
        return {"pbi": item_of_text(words, title)}
    items = items_of(parse_json(words, "the text"))
    if not items:
        raise RequestRejected("it holds no item")
    return items[0]


@router.get("/enrich/{job_id}")
def answer(session: Logged, parts: Parts, request: Request, job_id: UUID) -> Response:
    """How the request stands, or its answer as a product owner reads it."""
    job = client_for(request, parts, session.caller).job(job_id, caller=session.caller)
    told: dict[str, Any] = {"job": job, "report": "", "markdown": "", "refresh": 0 if job.ended else 2}
    if job.state == "done":
        item = {"pbi": job.request["pbi"], "scores": {}, "context": job.result}
        told["markdown"] = report.document([item], "md")
        told["report"] = Markup(report.rendered(told["markdown"]))  # noqa: S704 (all texts in it are escaped)
    return session.page("enrich.html", "Step 4", **told)


@router.get("/sources")
def sources(session: Logged, parts: Parts, request: Request, done: str = "") -> Response:
    """Where documents come from; what waits for a person, for those who see to it."""
    operates = session.caller.may(OPERATE)
    told: dict[str, Any] = {"operates": operates, "letters": (), "usage": (), "wrong": ()}
    told["done"] = "Done." if done else ""
    if operates:
        letters, usage = letters_of(parts, session.caller)
        shown = recent(request.app.state.watcher)["next"]
        wrong = [one for one in shown if one["status"] == "error" and one["check"] in INSTALLATION]
        told |= {"letters": letters, "usage": usage, "wrong": wrong}
    found = _with_problems(parts, session)
    moving = any(one["run"] and not one["run"].finished_at for one in found)
    return session.page("sources.html", "Sources", sources=found, **told, refresh=5 if moving else 0)


@router.get("/sources/{name}")
def source_problems(session: Logged, parts: Parts, name: str) -> Response:
    """What was not taken in of a source, with the reasons."""
    source = next((one for one in _with_problems(parts, session) if one["name"] == name), None)
    if source is None or not source["counts"]:
        raise NotFound("there is no source of this name whose problems you may see")
    return session.page("problems.html", "Sources", source=source)


def _with_problems(parts: Parts, session: Session) -> list[dict[str, Any]]:
    problems = problems_of(parts, session.caller)
    none: dict[str, Any] = {"counts": {}, "problems": [], "left_out": {}}
    return [{**one, **problems.get(one["id"], none)} for one in sources_of(parts, session.caller)]


@router.post("/release")
def release(session: Logged, parts: Parts, request: Request, csrf: Csrf, source: Text) -> Response:
    """Let the deletions of a source go that are held."""
    session.checked(csrf, OPERATE)
    operate_source(parts, session.caller, source, partial(operations.release, parts))
    return _to(request, "/sources?done=1")


@router.post("/replay")
def replay(
    session: Logged, parts: Parts, request: Request, csrf: Csrf, letter: Annotated[int, Form()]
) -> Response:
    """Try a dead letter's document again."""
    session.checked(csrf, OPERATE)
    chosen = [one for one in letters_of(parts, session.caller)[0] if one.id == letter]
    with acting_as(session.caller.subject):
        operations.replay(parts, chosen)
    return _to(request, "/sources?done=1")


@router.get("/changes")
def changes(session: Logged, parts: Parts) -> Response:
    """What was indexed today."""
    return session.page("changes.html", "Changes", documents=changes_of(parts, session.caller))
