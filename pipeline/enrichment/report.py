"""The answers of Step 4 as pages for a person: Markdown, and the same as HTML."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from pipeline.documents import Json
from pipeline.enrichment.context import UNKNOWN
from pipeline.enrichment.degradation import LEVELS, STATIC
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.text import printable, truncated
from pipeline.errors import RequestRejected

TONES: Mapping[str, str] = {
    **dict.fromkeys(("accepted", "implementing", "implemented"), "good"),
    **dict.fromkeys(("proposed", "MEDIUM"), "warn"),
    **dict.fromkeys(("superseded", "rejected", "deprecated", "given up", "HIGH"), "bad"),
}


def rendered(markdown: str, anchors: Sequence[str] = ()) -> str:
    """This text as HTML, with none of its own; `anchors` are ids of its first headings."""
    from markdown_it import MarkdownIt
    from markdown_it.common.utils import escapeHtml

    def badge(_self: Any, tokens: Any, index: int, *_: Any) -> str:
        text = tokens[index].content
        return f'<code class="{TONES.get(text, "plain")}">{escapeHtml(text)}</code>'

    made = MarkdownIt("commonmark", {"html": False})
    made.add_render_rule("code_inline", badge)
    tokens = made.parse(markdown)
    headings = (t for t in tokens if t.type == "heading_open" and t.tag == "h1")
    for token, anchor in zip(headings, anchors, strict=False):
        token.attrSet("id", anchor)
    body: str = made.renderer.render(tokens, made.options, {})
    return body.replace("<li>[ ] ", '<li class="todo">')


def html(markdown: str, title: str, anchors: Sequence[str] = ()) -> str:
    """A page of this text, without a script or anything from elsewhere; `anchors` are ids of its first headings."""
    from markdown_it.common.utils import escapeHtml

    page = Template(files("pipeline.enrichment").joinpath("report.html").read_text(encoding="utf-8"))
    style = page.template.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return page.substitute(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        title=escapeHtml(title),
        body=rendered(markdown, anchors),
    )


Form = Literal["md", "html"]

LONGEST = 600
"""Characters of a PBI's description that are shown."""
_WEB_ADDRESS = "%/:?#[]@!$&'()*+,;=~"
_MARKS = re.compile(r"[\\`*_\[\]<>&|~#$]")
_LINKS_ITSELF = re.compile(r"\b(https?|ftp|mailto|xmpp|www)(?=[:.])", re.IGNORECASE)
_MENTIONS = re.compile(r"(?<!\w)@(?=\w)")
"""What GitHub makes a mention of, even behind a backslash: only a character in between keeps it from doing so."""
_BEGINS_BLOCK = re.compile(r"^(\d{1,9}(?=[.)])|(?=[-+=]))")


def document(items: Sequence[Json], form: Form) -> str:
    """All items on one page, with a list of them first if there are several."""
    anchors = _unique(items, _title)
    parts = [_contents(items, [f"#{anchor}" for anchor in anchors])] if len(items) > 1 else []
    parts += [part for item in items for part in _page(item)]
    return _written(parts, _title(items[0]) if len(items) == 1 else "Step 4", form, anchors)


def folder(items: Sequence[Json], form: Form) -> dict[str, str]:
    """File name -> text: a page for each item, and `index`, which links to them."""
    names = [
        f"{name}.{form}" for name in _unique(items, lambda item: str(item["pbi"].get("id") or "item")[:60])
    ]
    pages = {
        name: _written([f"[All items](index.{form})", *_page(item)], _title(item), form)
        for name, item in zip(names, items, strict=True)
    }
    return {**pages, f"index.{form}": _written(["# Step 4", _contents(items, names)], "Step 4", form)}


def _contents(items: Sequence[Json], addresses: Sequence[str]) -> str:
    lines = []
    for item, address in zip(items, addresses, strict=True):
        found = item["context"]
        counts = [f"{word} {len(found[key])}" for key, word in _COUNTED.items() if found.get(key)]
        facts = _facts(_trouble(found), *counts) or "nothing found"
        lines.append(f"[{_safe(_title(item))}]({address})\\\n  {facts}")
    return _list(lines)


_COUNTED = {
    "suggestions": "suggestions",
    "likely_duplicates": "duplicates",
    "similar_work": "similar work",
    "past_decisions": "decisions",
    "technical_docs": "documents",
}


def _page(item: Json) -> Iterator[str]:
    """The paragraphs of one item."""
    found = item["context"]
    sources = {one["n"]: one for one in found.get("citations") or ()}
    yield f"# {_safe(_title(item))}"
    if trouble := _trouble(found):
        yield f"> {trouble}"
    yield from _asked(item["pbi"])
    # What to do, what went wrong before, and what is much the same.
    yield from _section(
        "Suggestions",
        found.get("suggestion_details"),
        lambda s: f"[ ] {_safe(s['text'])}{_cited(s['citations'], sources)}",
    )
    yield from _section(
        "Risk hints",
        found.get("risk_hints"),
        lambda h: f"{_badge(h['severity'])} {_safe(h['message'])}{_cited([h['citation']], sources)}",
    )
    twins = found.get("likely_duplicates")
    yield from _section("Likely duplicates", twins, lambda t: f"{_linked(named(t), t)} {_facts(*_ended(t))}")
    if not found.get("error") and found.get("degradation_level", 0) < STATIC:
        yield from _found(found, sources)


def _found(found: Json, sources: Mapping[int, Json]) -> Iterator[str]:
    """What was found for it, and where that is quoted from."""
    if not any(map(found.get, _SECTIONS)):
        yield "No similar work, decision or document was found."
    for key, (heading, show) in _SECTIONS.items():
        yield f"## {heading}" if found.get(key) else ""
        if key == "similar_work" and found.get("effort_of_similar"):
            yield f"Effort of {_safe(found['effort_of_similar']['text'])}"
        for one in found.get(key) or ():
            yield f"### {_linked(named(one), one)}"
            yield from show(one, sources)
    yield "## Sources" if sources else ""
    yield "\n".join(_source(one) for _, one in sorted(sources.items()))


def _source(one: Json) -> str:
    linked, told = _linked(named(one), one), named(one)
    # Without a link, the path is how to find it.
    path = "" if linked != _safe(told) or str(one["ref"]) in told else f" ({_safe(one['ref'])})"
    return f"{one['n']}. {linked}{path}: “{_safe(one['quoted'])}”"


def _asked(pbi: Mapping[str, Any]) -> Iterator[str]:
    try:
        request = EnrichmentRequest.from_json({"pbi": pbi})
    except RequestRejected:
        return
    yield _safe(truncated(printable(request.description), LONGEST))
    if request.criteria:
        yield "**Acceptance criteria**"
        yield _list(map(_safe, request.criteria))


def _work(one: Json, sources: Mapping[int, Json]) -> Iterator[str]:
    yield _facts(*_ended(one), _safe(one.get("effort")), _changed(one))
    yield _why(one)
    yield _list(_each([*one["learnings"], *one.get("relevant_sections", ())], one, sources))


def _decision(one: Json, sources: Mapping[int, Json]) -> Iterator[str]:
    status = _badge("status unknown" if one["status"] == UNKNOWN else one["status"])
    by = f" by {_safe(one['superseded_by'])}" if one.get("superseded_by") else ""
    yield _facts(f"{_alike(one)} {status}{by}", _safe(one.get("date")), _safe(one.get("assigned_architect")))
    yield _why(one)
    yield f"> {_safe(one['decision'])}{_cited(one['citations'], sources)}"
    # A record of one sentence is its decision, its reason and what follows: it is said once.
    rationale, said = one.get("rationale") or "", one["decision"]
    if rationale not in said:
        yield f"**Why:** {_safe(rationale)}"
    if follows := [text for text in one.get("constraints") or () if text not in said]:
        yield "**What follows:**"
        yield _list(map(_safe, follows))


def _document(one: Json, sources: Mapping[int, Json]) -> Iterator[str]:
    yield _facts(_alike(one), _changed(one))
    yield _why(one)
    yield _list(_each(one["relevant_sections"], one, sources))


_SECTIONS = {
    "similar_work": ("Similar work", _work),
    "past_decisions": ("Past decisions", _decision),
    "technical_docs": ("Documents", _document),
}


def _ended(one: Json) -> list[str]:
    words = ["given up" if one.get("abandoned") else "", one.get("status"), one.get("outcome")]
    badges = [_badge(word) for word in dict.fromkeys(words) if word]
    master = f"closed as duplicate of {_safe(one['duplicate_of'])}" if one.get("duplicate_of") else ""
    return [" ".join([_alike(one), *badges]), master]


def _alike(one: Json) -> str:
    return _badge(f"{one.get('similarity', 0)} %")


def _changed(one: Json) -> str:
    return f"last changed {_safe(one['updated_at'])}" if one.get("updated_at") else ""


def _why(one: Json) -> str:
    return f"*Why shown: {_safe(one['why'])}*" if one.get("why") else ""


def _each(texts: Sequence[str], one: Json, sources: Mapping[int, Json]) -> Iterator[str]:
    """Each text with its own number."""
    for n, text in enumerate(texts):
        yield f"{_safe(text)}{_cited(one['citations'][n : n + 1], sources)}"


def _cited(numbers: Iterable[int], sources: Mapping[int, Json]) -> str:
    return "".join(" " + _linked(f"[{n}]", sources.get(n, {})) for n in numbers)


def _trouble(found: Json) -> str:
    level = found.get("degradation_level") or 0
    if found.get("error"):
        return f"**Refused:** {_safe(found['error'])}"
    said = [f"**Level {level}:** {LEVELS[level].says}"] if level else []
    return " ".join([*said, *(f"**Partial:** {_safe(p)}" for p in [found.get("partial")] if p)])


def _title(item: Json) -> str:
    parts = (printable(str(item["pbi"].get(key))) for key in ("id", "title") if item["pbi"].get(key))
    return " ".join(parts) or "Item without a title"


def named(one: Json) -> str:
    """The id and title of an entry; a path or an address says little beside a title."""
    ref, title = str(one.get("ref") or ""), str(one.get("title") or "")
    return title if "/" in ref or not ref else f"{ref} {title}"


# Markdown -----------------------------------------------------------------------------------------


def _safe(text: Any) -> str:
    """A text on one line in which nothing is Markdown, HTML, a link or a mention."""
    line = _MENTIONS.sub("@&#8203;", _MARKS.sub(r"\\\g<0>", printable(str(text or ""))))
    return _BEGINS_BLOCK.sub(r"\1\\", _LINKS_ITSELF.sub(r"\1\\", line))


def _badge(text: Any) -> str:
    words = printable(str(text)).replace("`", "'")
    return f"`{words}`"


def _linked(text: str, one: Json) -> str:
    """The text, as a link if the document has an address of the web."""
    address = str(one.get("link") or "")
    try:
        found = urlsplit(address)
    except ValueError:
        return _safe(text)
    if found.scheme not in ("http", "https") or not found.netloc:
        return _safe(text)
    return f"[{_safe(text)}](<{quote(printable(address), safe=_WEB_ADDRESS).replace('&', '&amp;')}>)"


def _facts(*facts: str) -> str:
    return " · ".join(fact for fact in facts if fact)


def _section(heading: str, entries: Iterable[Json] | None, show: Callable[[Json], str]) -> Iterator[str]:
    if lines := _list(map(show, entries or ())):
        yield f"## {heading}"
        yield lines


def _list(entries: Iterable[str]) -> str:
    return "\n".join(f"- {entry}" for entry in entries)


def _unique(items: Sequence[Json], name: Any) -> list[str]:
    """Of each item, a name as GitHub gives it to the anchor of a heading."""
    made, numbers = dict.fromkeys(["index"]), Counter[str]()
    for item in items:
        slug = again = re.sub(r"[^\w\- ]", "", name(item).lower()).replace(" ", "-")
        while again in made:
            numbers[slug] += 1
            again = f"{slug}-{numbers[slug]}"
        made[again] = None
    return list(made)[1:]


def _written(parts: Iterable[str], title: str, form: Form, anchors: Sequence[str] = ()) -> str:
    body = "\n\n".join(part for part in parts if part) + "\n"
    return body if form == "md" else html(body, title, anchors)
