"""Reports of Step 4 for people, as Markdown or HTML."""

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
    """Markdown rendered as HTML; HTML inside of it is escaped. `anchors` are the ids of the first headings."""
    from markdown_it import MarkdownIt
    from markdown_it.common.utils import escapeHtml

    def badge(_self: Any, tokens: Any, index: int, *_: Any) -> str:
        text = tokens[index].content
        return f'<code class="{TONES.get(text, "plain")}">{escapeHtml(text)}</code>'

    renderer = MarkdownIt("commonmark", {"html": False})
    renderer.add_render_rule("code_inline", badge)
    tokens = renderer.parse(markdown)
    headings = (t for t in tokens if t.type == "heading_open" and t.tag == "h1")
    for token, anchor in zip(headings, anchors, strict=False):
        token.attrSet("id", anchor)
    body: str = renderer.renderer.render(tokens, renderer.options, {})
    return body.replace("<li>[ ] ", '<li class="todo">')


def html(markdown: str, title: str, anchors: Sequence[str] = ()) -> str:
    """A web page of a Markdown text, without scripts and external resources; `anchors` are ids of first headings."""
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
"""Most characters of a backlog item's description in a report."""
_WEB_ADDRESS = "%/:?#[]@!$&'()*+,;=~"
_MARKS = re.compile(r"[\\`*_\[\]<>&|~#$]")
_LINKS_ITSELF = re.compile(r"\b(https?|ftp|mailto|xmpp|www)(?=[:.])", re.IGNORECASE)
_MENTIONS = re.compile(r"(?<!\w)@(?=\w)")
"""Mentions on GitHub, which even a backslash does not prevent, but a character in between does."""
_BEGINS_BLOCK = re.compile(r"^(\d{1,9}(?=[.)])|(?=[-+=]))")


def document(items: Sequence[Json], form: Form) -> str:
    """One page with all items, after a table of contents if there are several."""
    anchors = _unique(items, _title)
    paragraphs = [_contents(items, [f"#{anchor}" for anchor in anchors])] if len(items) > 1 else []
    paragraphs += [paragraph for item in items for paragraph in _page(item)]
    return _written(paragraphs, _title(items[0]) if len(items) == 1 else "Step 4", form, anchors)


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
        context = item["context"]
        counts = [f"{word} {len(context[key])}" for key, word in _COUNTED.items() if context.get(key)]
        facts = _facts(_trouble(context), *counts) or "nothing found"
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
    context = item["context"]
    sources = {one["n"]: one for one in context.get("citations") or ()}
    yield f"# {_safe(_title(item))}"
    if trouble := _trouble(context):
        yield f"> {trouble}"
    yield from _item_text(item["pbi"])
    # Suggestions, problems of earlier work, and duplicates.
    yield from _section(
        "Suggestions",
        context.get("suggestion_details"),
        lambda s: f"[ ] {_safe(s['text'])}{_cited(s['citations'], sources)}",
    )
    yield from _section(
        "Risk hints",
        context.get("risk_hints"),
        lambda h: f"{_badge(h['severity'])} {_safe(h['message'])}{_cited([h['citation']], sources)}",
    )
    twins = context.get("likely_duplicates")
    yield from _section("Likely duplicates", twins, lambda t: f"{_linked(named(t), t)} {_facts(*_ended(t))}")
    if not context.get("error") and context.get("degradation_level", 0) < STATIC:
        yield from _findings(context, sources)


def _findings(context: Json, sources: Mapping[int, Json]) -> Iterator[str]:
    """The paragraphs of similar work, decisions, documents and sources."""
    if not any(map(context.get, _SECTIONS)):
        yield "No similar work, decision or document was found."
    for key, (heading, show) in _SECTIONS.items():
        yield f"## {heading}" if context.get(key) else ""
        if key == "similar_work" and context.get("effort_of_similar"):
            yield f"Effort of {_safe(context['effort_of_similar']['text'])}"
        for one in context.get(key) or ():
            yield f"### {_linked(named(one), one)}"
            yield from show(one, sources)
    yield "## Sources" if sources else ""
    yield "\n".join(_source(one) for _, one in sorted(sources.items()))


def _source(one: Json) -> str:
    linked, name = _linked(named(one), one), named(one)
    # Without a link the path helps to find the document.
    path = "" if linked != _safe(name) or str(one["ref"]) in name else f" ({_safe(one['ref'])})"
    return f"{one['n']}. {linked}{path}: “{_safe(one['quoted'])}”"


def _item_text(pbi: Mapping[str, Any]) -> Iterator[str]:
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
    # In a record of one sentence it is decision, reason and consequence: it is written once.
    rationale, decision = one.get("rationale") or "", one["decision"]
    if rationale not in decision:
        yield f"**Why:** {_safe(rationale)}"
    if follows := [text for text in one.get("constraints") or () if text not in decision]:
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
    """Texts with their citations."""
    for n, text in enumerate(texts):
        yield f"{_safe(text)}{_cited(one['citations'][n : n + 1], sources)}"


def _cited(numbers: Iterable[int], sources: Mapping[int, Json]) -> str:
    return "".join(" " + _linked(f"[{n}]", sources.get(n, {})) for n in numbers)


def _trouble(context: Json) -> str:
    level = context.get("degradation_level") or 0
    if context.get("error"):
        return f"**Refused:** {_safe(context['error'])}"
    notices = [f"**Level {level}:** {LEVELS[level].says}"] if level else []
    return " ".join([*notices, *(f"**Partial:** {_safe(p)}" for p in [context.get("partial")] if p)])


def _title(item: Json) -> str:
    words = (printable(str(item["pbi"].get(key))) for key in ("id", "title") if item["pbi"].get(key))
    return " ".join(words) or "Item without a title"


def named(one: Json) -> str:
    """Id and title of an entry; the title alone if the id is a path or an address."""
    ref, title = str(one.get("ref") or ""), str(one.get("title") or "")
    return title if "/" in ref or not ref else f"{ref} {title}"


# Markdown -----------------------------------------------------------------------------------------


def _safe(text: Any) -> str:
    """A text on one line, escaped so that nothing is Markdown, HTML, a link or a mention."""
    line = _MENTIONS.sub("@&#8203;", _MARKS.sub(r"\\\g<0>", printable(str(text or ""))))
    return _BEGINS_BLOCK.sub(r"\1\\", _LINKS_ITSELF.sub(r"\1\\", line))


def _badge(text: Any) -> str:
    words = printable(str(text)).replace("`", "'")
    return f"`{words}`"


def _linked(text: str, one: Json) -> str:
    """The text, as a link if the document has a web address."""
    address = str(one.get("link") or "")
    try:
        url = urlsplit(address)
    except ValueError:
        return _safe(text)
    if url.scheme not in ("http", "https") or not url.netloc:
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
    """A unique name for each item, in the form of GitHub's anchors of headings."""
    slugs, numbers = dict.fromkeys(["index"]), Counter[str]()
    for item in items:
        slug = unique = re.sub(r"[^\w\- ]", "", name(item).lower()).replace(" ", "-")
        while unique in slugs:
            numbers[slug] += 1
            unique = f"{slug}-{numbers[slug]}"
        slugs[unique] = None
    return list(slugs)[1:]


def _written(paragraphs: Iterable[str], title: str, form: Form, anchors: Sequence[str] = ()) -> str:
    body = "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"
    return body if form == "md" else html(body, title, anchors)
