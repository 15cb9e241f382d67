"""What a heading announces, in the languages that people write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from pipeline.enrichment.sentences import Sentence


class Part(StrEnum):
    """The parts of a document that an answer is made of."""

    LESSONS = "lessons"
    RESOLUTION = "resolution"
    OUTCOME = "outcome"
    NOTES = "notes"
    CRITERIA = "criteria"
    COMMENTS = "comments"
    DECISION = "decision"
    STATUS = "status"
    RATIONALE = "rationale"
    CONTEXT = "context"
    CONSTRAINTS = "constraints"
    CONSEQUENCES = "consequences"
    ELSEWHERE = "elsewhere"


HEADINGS: Mapping[Part, tuple[str, ...]] = {
    Part.LESSONS: (
        "lessons learned", "lessons learnt", "lessons", "lesson", "learnings", "what we learned", "what we learnt",
        "retro", "retrospective", "postmortem", "post-mortem", "post mortem", "what went well", "what went wrong",
        "erkenntnisse", "gelerntes", "was wir gelernt haben", "lehren", "retrospektive", "rückblick",
        "leçons", "leçons apprises", "enseignements", "retour d'expérience", "ce que nous avons appris",
        "rétrospective",
    ),
    Part.RESOLUTION: (
        "resolution", "solution", "fix", "root cause", "lösung", "behebung", "ursache", "résolution", "cause",
    ),
    Part.OUTCOME: (
        "outcome", "outcomes", "result", "results", "closing comment", "ergebnis", "ergebnisse", "abschluss",
        "abschlussbericht", "résultat", "résultats", "bilan",
    ),
    Part.NOTES: (
        "final summary", "implementation notes", "umsetzungsnotizen", "implementierungsnotizen", "résumé final",
        "notes d'implémentation", "notes de mise en œuvre",
    ),
    Part.CRITERIA: (
        "acceptance criteria", "acceptance criterion", "definition of done", "akzeptanzkriterien",
        "abnahmekriterien", "critères d'acceptation", "critères d'acceptance",
    ),
    Part.COMMENTS: ("comments", "discussion", "kommentare", "diskussion", "commentaires"),
    Part.DECISION: (
        "decision", "decisions", "the decision", "decision outcome", "we decided", "entscheidung", "entscheid",
        "beschluss", "décision", "décisions", "what", "proposal", "proposed solution",
    ),
    Part.STATUS: ("status", "state", "stand", "statut", "état"),
    Part.RATIONALE: (
        "rationale", "justification", "reasoning", "reasons", "why", "argument", "decision drivers", "begründung",
        "gründe", "warum", "raisons", "pourquoi",
    ),
    Part.CONTEXT: (
        "context", "context and problem statement", "background", "motivation", "problem", "problem statement", "issue",
        "kontext", "hintergrund", "ausgangslage", "contexte",
    ),
    Part.CONSTRAINTS: ("constraints", "constraint", "einschränkungen", "randbedingungen", "vorgaben", "contraintes"),
    Part.CONSEQUENCES: (
        "consequences", "positive consequences", "negative consequences", "implications", "konsequenzen",
        "auswirkungen", "folgen", "conséquences",
    ),
    Part.ELSEWHERE: (
        "what's next", "whatsnext", "next steps", "see also", "further reading", "read more", "related pages",
        "references", "links", "siehe auch", "weiterführendes", "nächste schritte", "voir aussi",
        "pour aller plus loin",
    ),
}  # fmt: skip
"""Part -> headings that announce it, without numbering and punctuation."""

_PARTS = {name: part for part, names in HEADINGS.items() for name in names}
_LONGEST = 100
"""Characters of a heading that may announce a part; a longer one tells of something itself."""
_NUMBERING = re.compile(r"^[\W\d_]+|[\W_]+$")
_LABEL = re.compile(r"[*_]{0,2}([^\W\d][\w' -]{2,24}?)[*_]{0,2}\s*:[*_]{0,2}\s+(?=\S)")


def part_of(headings: Iterable[str]) -> Part | None:
    """The part that the nearest telling heading announces; None if none of them does."""
    for heading in reversed([heading for heading in headings if len(heading) <= _LONGEST]):
        name = _NUMBERING.sub("", heading.replace("’", "'")).casefold()
        if name in _PARTS:
            return _PARTS[name]
    return None


def under(sentences: Sequence[Sentence], part: Part) -> list[Sentence]:
    """The sentences of a part: below its headings, or in a paragraph that begins with its name (`Outcome: ...`)."""
    labelled: dict[int, Part | None] = {}
    for s in sentences:
        if s.paragraph not in labelled:
            label = _LABEL.match(s.text)
            labelled[s.paragraph] = part_of([label[1]]) if label else None
    return [s for s in sentences if (labelled[s.paragraph] or part_of(s.headings)) is part]
