"""The places of a document that matter most for a question, short enough to be read at a glance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.enrichment.found import Found
from pipeline.enrichment.headings import Part, part_of
from pipeline.enrichment.sentences import CUT, QUOTED, WITHOUT_BLANK, Sentence, shortened
from pipeline.enrichment.words import flat, stems
from pipeline.search.snippets import passage

ENOUGH = 0.6
"""Of the best passage's score: a further one that has less is not worth showing."""
OF_THE_HIT = 1.25
"""How much more a passage counts that stands in the chunk the search has chosen."""
OF_LINKS = 0.5
"""How much a passage counts that only says where to read on."""
_DOTS = " ..."
_TARGET = re.compile(r"https?://\S+")
"""Where a link leads: its words are those of a site's folders, not of the text."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """A passage."""

    sentence: Sentence
    """Its text and its place."""
    shown: str
    """With the nearest heading before it, if there is room."""


def best_passages(found: Found, *, most: int) -> list[Best]:
    """At most `most` passages, the best first; none of a document without prose."""
    windows = list(_windows(found.sentences))
    if not windows:
        return []
    words = {s: stems(_TARGET.sub(" ", s.text)) & found.question for s in found.sentences}
    scored = sorted(((_score(found, w, words), -n, w) for n, w in enumerate(windows)), reverse=True)
    top = scored[0][0]
    if not top:
        return [_shown(found, _from_chunk(found))]
    kept: list[tuple[Sentence, ...]] = []
    for score, _, window in scored:
        apart = all(not set(window) & set(other) for other in kept)
        if len(kept) < most and apart and score >= ENOUGH * top:
            kept.append(window)
    return [_shown(found, _joined(found, window)) for window in kept]


def _windows(sentences: Sequence[Sentence]) -> Iterator[tuple[Sentence, ...]]:
    """From each sentence on, as many of the same paragraph as may be shown together."""
    for n, first in enumerate(sentences):
        window = [first]
        size = len(first.text)
        for other in sentences[n + 1 :]:
            size += len(other.text) + 1
            apart = (other.paragraph, other.ord) != (first.paragraph, first.ord)
            if apart or size > QUOTED or window[-1].text.endswith(tuple(WITHOUT_BLANK)):
                break
            window.append(other)
        yield tuple(window)


def _score(found: Found, window: tuple[Sentence, ...], words: Mapping[Sentence, frozenset[str]]) -> float:
    """How many different words of the question it has, those under a fitting heading a little more."""
    had = frozenset().union(*(words[s] for s in window))
    score = len(had) + 0.5 * len(stems(window[0].heading) & found.question)
    if part_of(window[0].headings) is Part.ELSEWHERE:
        score *= OF_LINKS
    return score * (OF_THE_HIT if window[0].ord == found.hit.chunk.ord else 1.0)


def _joined(found: Found, window: tuple[Sentence, ...]) -> Sentence:
    first = window[0]
    if len(window) == 1 and len(first.text) > QUOTED:
        return replace(first, text=_cut(first.text, found))
    return replace(first, text=" ".join(s.text for s in window))


def _cut(text: str, found: Found) -> str:
    """The part of a long text where the question's words stand."""
    cut = passage(text, " ".join(sorted(found.question)), length=QUOTED).text
    line = flat(text)
    if cut.endswith(_DOTS) and not line.endswith(cut):
        cut = cut.removesuffix(_DOTS) + f" {CUT}"
    if not line.startswith(cut[:-2]) and cut.startswith("... "):
        cut = f"{CUT} " + cut.removeprefix("... ")
    return cut


def _from_chunk(found: Found) -> Sentence:
    """Of the chunk that was found or else the document, when no sentence has a word of the question."""
    own = (s for s in found.sentences if s.ord == found.hit.chunk.ord)
    return shortened(next(own, found.sentences[0]))


def _shown(found: Found, sentence: Sentence) -> Best:
    heading = sentence.heading
    tells = heading and heading.casefold() != found.title.casefold()
    mark = " " if heading.endswith(("?", "!", ":")) else ": "
    if tells and len(heading) + len(mark) + len(sentence.text) <= QUOTED:
        return Best(sentence=sentence, shown=f"{heading}{mark}{sentence.text}")
    return Best(sentence=sentence, shown=sentence.text)
