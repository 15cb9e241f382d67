"""Pages of answers for a person: what is on them, and what the texts of documents cannot do to them."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pipeline.documents import Json
from pipeline.enrichment.context import EnrichedContext, static_context
from pipeline.enrichment.report import Form, document, folder, html
from pipeline.enrichment.text import printable
from tests.complexity import assert_linear
from tests.pipeline.enrichment.everything import ITEM, MARK, NO_LOCK, STREAMED, STREAMING

EMPTY = EnrichedContext().to_json()
GFM = MarkdownIt("commonmark").enable(["table", "strikethrough"])


class Seen(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    @property
    def links(self) -> list[str]:
        return [str(attrs["href"]) for tag, attrs in self.elements if tag == "a"]

    @property
    def text(self) -> str:
        return " ".join("".join(self.said).split())


def item(context: Json, **pbi: Any) -> Json:
    return {"pbi": {"id": "PBI-1", "title": "Login", **pbi}, "scores": {}, "context": context}


def test_a_page_tells_all_that_an_answer_has() -> None:
    seen = Seen(document([ITEM], "html"))
    for words in (
        "PBI-99 Export invoices as CSV for the tax office",
        "Level 1: without reranking",
        "As a billing clerk I want",
        "The file opens in a spreadsheet",
        "already covers this: 84 % alike. [1]",
        "MEDIUM PBI-7 took 21 points and was estimated at 13. [2]",
        "Effort of five like it: median 9 days (n = 5)",
        "84 % Closed Duplicate · closed as duplicate of PBI-3 · took 21 points, estimated 13; 12 days",
        "Why shown: export, invoices, CSV",
        f"{STREAMING} [1]",
        f"{NO_LOCK} [2]",
        "52 % given up Removed Won't fix",
        "71 % superseded by ADR 9 · 2025-04-02 · Ada Lovelace, Bert Sutherland",
        f"{STREAMED} [4]",
        "Why: Exports of invoices filled the memory.",
        "Progress cannot be shown in percent.",
        f"{MARK} [6]",
    ):
        assert words in seen.text
    assert seen.tags.count("ol") == 1
    assert ("code", {"class": "bad"}) in seen.elements
    assert [attrs.get("class") for tag, attrs in seen.elements if tag == "li"].count("todo") == 2


def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    page = document([ITEM], "html")
    seen = Seen(page)
    assert not {"script", "img", "link", "iframe", "form", "object", "base"} & set(seen.tags)
    assert not any(
        name.startswith("on") or name in ("src", "style") for _, attrs in seen.elements for name in attrs
    )
    assert "url(" not in page
    assert "@import" not in page
    style = re.search("<style>(.*)</style>", page, re.DOTALL)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    (policy,) = [str(attrs["content"]) for _, attrs in seen.elements if "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}'" in policy


def test_empty_and_degraded_answers_say_so() -> None:
    assert "No similar work, decision or document was found." in document([item(EMPTY)], "md")
    static = document([item(static_context(4).to_json())], "md")
    assert "> **Level 4:** nothing could be looked up\n" in static
    assert "- [ ] Past work could not be looked up" in static
    assert "was found" not in static
    assert "switched off" in document([item(static_context(5).to_json())], "md")
    refused = document([item(EMPTY | {"error": "pbi.title is a list, not a text"}, title=["a"])], "md")
    assert "> **Refused:** pbi.title is a list, not a text" in refused
    assert "was found" not in refused


@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\nscript:alert(1)", " javascript:alert(1)", "data:text/html,x",
        "vbscript:x", "file:///etc/passwd", "//evil.example", "https:evil", "http://[", "#", "", "/path",
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["md", "html"])
def test_only_addresses_of_the_web_become_links(link: str, form: Form) -> None:
    bad = _with(ITEM, lambda key, text: link if key == "link" else text)
    page = document([bad], form)
    assert Seen(page).links == []
    assert "](" not in page


def test_a_source_without_an_address_is_told_by_its_path() -> None:
    seen = Seen(document([_with(ITEM, lambda key, text: "#" if key == "link" else text)], "html"))
    sources = seen.text.rpartition("Sources")[2]
    assert "ADR 3: Exports are streamed (adr/0003.md): “" in sources
    assert "PBI-7 Export invoices as CSV: “" in sources
    assert "adr/0003.md" not in Seen(document([ITEM], "html")).text


@pytest.mark.parametrize(
    ("link", "href"),
    [
        ("https://a.example/x?a=1&copy;=2#y", "https://a.example/x?a=1&copy;=2#y"),
        ("https://a.example/a b(c)<d>\\e`f", "https://a.example/a%20b(c)%3Cd%3E%5Ce%60f"),
        ("https://a.example/\u202eü", "https://a.example/%C3%BC"),
    ],
)
def test_addresses_lead_where_they_say(link: str, href: str) -> None:
    page = document([_with(ITEM, lambda key, text: link if key == "link" else text)], "html")
    assert set(Seen(page).links) == {href}


HOSTILE = [
    "1 \x00",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "# Heading",
    "Setext\n===",
    "===",
    "---",
    "- item",
    "+ item",
    "* item",
    "1. item",
    "1) item",
    "> quote",
    "    code",
    "```\ncode",
    "~~~",
    "`code`",
    "`",
    "*em* __strong__ ~~gone~~",
    "[a](https://evil.example)",
    "![a](https://evil.example/a.png)",
    "[a]: https://evil.example",
    "<https://evil.example>",
    "a | b",
    "| a | b |\n|---|---|",
    "&lt;b&gt; &copy;",
    "\\",
    "ends with \\",
    "[x] done",
    "] (",
    "#",
]


@settings(max_examples=40, deadline=None)
@given(st.text("ab1 \n\t`*_[]()#+-.!|<>~&\\=:/'\"$^{}\u202e\x1b\x00", min_size=1, max_size=12))
@pytest.mark.parametrize("form", ["md", "html"])
def test_no_text_of_a_document_changes_the_build_of_a_page(form: Form, text: str) -> None:
    _assert_same_build(form, text)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("form", ["md", "html"])
def test_no_hostile_text_changes_the_build_of_a_page(form: Form, text: str) -> None:
    _assert_same_build(form, text)


def _assert_same_build(form: Form, text: str) -> None:
    if not printable(text):
        return
    page, plain = document([_saying(text)], form), document([_saying("word")], form)
    if form == "html":
        assert Seen(page).tags == Seen(plain).tags
        said = " ".join(printable(text).replace("`", "'").split())
        assert Seen(page).text.replace("`", "'").count(said) >= 10
    else:
        assert _build(page) == _build(plain)


def _saying(text: str) -> Json:
    """An item all of whose texts are this one; a criterion has a word before it, since marks alone are none."""
    fixed = {"link", "updated_at", "date", "type", "outcome"}
    criteria = {"acceptance_criteria", "given", "then"}

    def said(key: str, old: str) -> str:
        return old if key in fixed else f"x {text}" if key in criteria else text

    made: Json = _with(ITEM, said)
    return made


def _build(page: str) -> list[tuple[str, str]]:
    flat = [inner for token in GFM.parse(page) for inner in [token, *(token.children or ())]]
    return [(token.type, token.tag) for token in flat if token.type != "text"]


@pytest.mark.parametrize(
    "text", ["see https://evil.example now", "www.evil.example", "mailto:a@evil.example", "HTTP://X"]
)
def test_addresses_in_texts_do_not_become_links_by_themselves(text: str) -> None:
    page = document([_saying(text)], "md")
    bare = re.sub(r"\]\(<[^>]*>\)|`[^`]*`", "", page)
    assert not re.search(r"\b(https?:|mailto:|www\.)", bare, re.IGNORECASE)


@pytest.mark.parametrize("text", ["@octocat", "ask @octocat, please", "(@org/team)", "*@octocat*"])
def test_nobody_is_mentioned_where_a_page_is_pasted(text: str) -> None:
    page = document([_saying(text)], "md")
    assert "@&#8203;o" in page
    # GitHub looks for mentions in what a renderer makes, where no backslash is left, and not in code.
    bare = re.sub("<code>.*?</code>", "", GFM.render(page))
    assert not re.search(r"(?<!\w)@\w", Seen(bare).text)
    assert "a@b.example" in document([_saying("write to a@b.example")], "md")


def test_characters_that_control_a_screen_or_turn_the_direction_are_left_out() -> None:
    text = "a\u202eb\x1b[31mc\u2066d\x07e\ud83df\u200bg\u061ch\ufeffi\U000e0041j"
    for form in ("md", "html"):
        page = document([_saying(text)], form)
        page.encode()
        assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069\u200b\u061c\ufeff]", page)
    assert printable("👩\u200d🚀 می\u200cخواهم") == "👩\u200d🚀 می\u200cخواهم", "joiners are letters' own"


def test_markdown_that_is_not_ours_is_no_html_either() -> None:
    seen = Seen(
        html("<script>alert(1)</script> <b>x</b> [a](javascript:alert(1))\n\n<div>y</div>", "a</title><b>")
    )
    assert not {"script", "b", "div", "a"} & set(seen.tags)


# Several items -------------------------------------------------------------------------------------

IDS = ["PBI-1", "../../etc/passwd", "pbi 1", "PBI-1", "pbi-1-1", "index", "", "ü" * 300, "<b>"]


def test_many_items_without_an_id_have_names_in_time() -> None:
    items = [{"pbi": {"title": "t"}, "context": {}}] * 400
    assert_linear(lambda n: items[:n], len(items), lambda some: folder(some, "md"))


@pytest.mark.parametrize("form", ["md", "html"])
def test_a_folder_has_a_page_for_each_item_and_an_index_of_them(form: Form) -> None:
    items = [item(EMPTY, id=name, title=f"Title {n}") for n, name in enumerate(IDS)]
    pages = folder(items, form)
    assert len(pages) == len(items) + 1
    assert len({name.lower() for name in pages}) == len(pages)
    assert all(re.fullmatch(rf"[\w-]{{1,70}}\.{form}", name) for name in pages)
    index = pages.pop(f"index.{form}")
    places = [index.index(f"Title {n}") for n in range(len(items))]
    assert places == sorted(places)
    for n, (name, page) in enumerate(pages.items()):
        assert f"Title {n}" in page
        assert f"index.{form}" in page
        if form == "md":
            assert f"({name})" in index


def test_one_page_for_all_starts_with_a_list_that_leads_to_each() -> None:
    items = [
        item(EMPTY),
        item(static_context(4).to_json(), title="Log out"),
        copy.deepcopy(ITEM),
        item(EMPTY),
    ]
    seen = Seen(document(items, "html"))
    anchors = [attrs["id"] for tag, attrs in seen.elements if tag == "h1"]
    assert anchors == [
        "pbi-1-login",
        "pbi-1-log-out",
        "pbi-99-export-invoices-as-csv-for-the-tax-office",
        "pbi-1-login-1",
    ]
    assert seen.links[:4] == [f"#{anchor}" for anchor in anchors]
    assert "suggestions 2 · duplicates 1 · similar work 2 · decisions 1 · documents 1" in seen.text
    assert "Level 4: nothing could be looked up" in seen.text.partition("Suggestions")[0]
    assert 'href="#' not in document(items[:1], "html"), "a list of one is none"


def _with(value: Any, change: Any, key: str = "") -> Any:
    """A copy with each text changed; `change` is given its key."""
    if isinstance(value, dict):
        return {name: _with(inner, change, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with(inner, change, key) for inner in value]
    return change(key, value) if isinstance(value, str) else value


def test_a_record_of_one_sentence_says_it_once() -> None:
    text = "Orders must go through the queue, because the shop locks up."
    known = {"status": "accepted", "link": "#", "why": "", "superseded_by": None}
    decision: Json = {
        "ref": "a.md",
        "title": "A",
        "similarity": 90,
        "decision": text,
        "citations": [],
        **known,
    }
    one = {**decision, "rationale": text, "constraints": [text, "Refunds must, too."]}
    page = document([{"pbi": {"id": "P"}, "context": {"past_decisions": [one]}}], "md")
    assert page.count("locks up") == 1
    assert "Because" not in page
    assert "Refunds must, too" in page
