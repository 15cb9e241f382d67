"""The status of a decision as people write it: one value, a sentence, or a history of several lines.

A status leads: it is the first word of a value, of a sentence or of a clause. What stands elsewhere in a sentence is
context (`Accepted. The draft was rejected twice`), and so is an adjective (`Rejected alternatives are below`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from connectors.documents.headings import letters, plain_text
from connectors.documents.values import parse_day
from pipeline.documents import DECISION_STATUSES

NOTHING = frozenset(
    {
        "na", "none", "null", "tbd", "tba", "no", "false", "nobody", "nothing", "unknown", "keine", "keiner", "nein",
        "aucun", "non", "ninguno", "ninguna", "nenhum", "nessuno", "geen", "yok", "нет", "无", "なし", "todo",
    }
)  # fmt: skip
MAX_LINE = 500
"""Characters of a line that are searched; a longer one is cut."""
SHORT_LINE = 6
"""Words of a line that its author ended; a longer one may be wrapped."""
SHORT_STATUS = 3
"""Words of a sentence that is a status whatever follows its first word: `Draft proposal`."""
FEWEST_CHOICES = 3
"""Statuses side by side that are a list to choose from."""

LIFECYCLE: Mapping[str, tuple[str, ...]] = {
    "superseded": ("obsoleted by",),
    "rejected": (
        "won't do", "wont do", "won’t do", "will not do", "won't fix", "wontfix", "not doing", "cancelled", "canceled",
        "denied", "dismissed", "dropped", "discarded", "dead", "iptal edildi", "cancelado", "cancelada", "annulé",
        "annulée",
    ),
    "deprecated": (
        "retired", "archived", "discontinued", "historical", "historic", "outdated", "expired", "inactive", "legacy",
        "sunset", "no longer valid", "no longer relevant", "no longer in force", "no longer active",
        "no longer used", "archiviert",
    ),
    "proposed": (
        "deferred", "postponed", "on hold", "on-hold", "parked", "paused", "stagnant", "stalled", "provisional",
        "wip",
        "work in progress", "work-in-progress", "in progress", "in-progress", "in discussion", "under discussion",
        "discussion", "undecided", "open", "new", "idea", "trial", "exploring", "zurückgestellt", "aufgeschoben",
        "in arbeit", "in bearbeitung", "in diskussion", "offen", "reporté", "reportée", "en cours", "aplazado",
        "aplazada", "pospuesto", "en progreso", "en discusión", "adiado", "adiada", "em andamento", "em discussão",
        "ertelendi", "rinviato", "отложено",
    ),
    "implemented": (
        "done", "completed", "complete", "shipped", "delivered", "released", "ready for release", "erledigt", "terminé",
        "concluído",
    ),
    "accepted": (
        "active", "final", "living", "current", "valid", "recommended", "implementable", "in force", "in effect",
        "effective", "demonstrated",
        "aktiv", "gültig", "in kraft", "actif", "active", "en vigueur", "activo", "activa", "vigente", "en vigor",
        "ativo", "ativa", "em vigor", "attivo", "actief", "yürürlükte", "действует", "有效", "生效", "有効",
    ),
}  # fmt: skip
"""Status -> words of other meanings that are a status only as a value, or at the start of the section on it."""


_FIRST_IDEOGRAPH = "\u2e80"
"""Scripts from here on put no blanks between words."""


PARTLY_WORD = re.compile(
    r"(?<!\w)(?:part(?:ly|ially)|in part|teilweise|partiellement|parcialmente|parzialmente)(?!\w)",
    re.IGNORECASE,
)
PARTLY = {"superseded": "accepted", "deprecated": "accepted", "implemented": "implementing"}
"""Status -> what a record is of which only a part is that."""


def _either(words: Mapping[str, Sequence[str]]) -> re.Pattern[str]:
    """A pattern with a group for each status; of words that begin alike the longest goes first."""
    groups = []
    for status, several in words.items():
        ordered = sorted(set(several), key=len, reverse=True)
        spaced = "|".join(
            re.escape(word).replace(r"\ ", "[ _-]") for word in ordered if word < _FIRST_IDEOGRAPH
        )
        dense = "".join(f"|{word}" for word in ordered if word >= _FIRST_IDEOGRAPH)
        groups.append(rf"(?P<{status}>(?<!\w)(?:{spaced})(?!\w){dense})")
    return re.compile("|".join(groups), re.IGNORECASE)


_WORD = _either(DECISION_STATUSES)
_ANY_WORD = _either(
    {status: (*words, *LIFECYCLE.get(status, ())) for status, words in DECISION_STATUSES.items()}
)

# Before a status word.
_DAY = (
    r"(?:\d{4}[-/.]\d\d?[-/.]\d\d?(?:T[\d:.]+Z?)?|\d\d?[./-]\d\d?[./-]\d{4}|\d\d? [^\W\d_]{3,9}\.? \d{4}"
    r"|[^\W\d_]{3,9}\.? \d\d?,? \d{4})"
)
_MARKS = re.compile(rf"(?:{_DAY}|[\W_])*+")
_FILLER = re.compile(
    r"(?:(?P<negated>not(?: yet)?|never|be|nicht|noch nicht|non|no|não|niet|не)"
    r"|(?P<partly>part(?:ly|ially)|in part|teilweise|zum teil|partiellement|parcialmente|parzialmente|gedeeltelijk"
    r"|kısmen|частично)"
    r"|in|under|en|em|for|ready|now|currently|already|then|later|formally|finally|officially|unanimously|provisionally"
    r"|conditionally|tentatively|dann|jetzt|später|puis|luego|depois"
    r"|(?P<auxiliary>is|was|has|have|had|been|will|wurde|wird|ist|est|été|a|fue|ha|sido|foi|está|queda|è|stata|stato|status"
    r"|this [a-z]+|it|dieses? \w+|cet(?:te)? \w+|est[ea] \w+|quest[ao] \w+|we|wir|nous))(?!\w)",
    re.IGNORECASE,
)
_SAID_OF_IT = re.compile(
    r"(?<!\w)(?:is|was|has|been|have|now|are|were|ist|wurde|est|été|fue|sido|foi|è)\s+", re.IGNORECASE
)
_STOP = re.compile(r"(?<! \d)(?<! \d\d)(?<! \d{3})(?<! \d{4})[.!?;]+(?= |$)|[。；]| [–—-]+ ")
_CLAUSE = re.compile(r"[,，、(（]|(?<!\w)(?:and|then|und|dann|et|puis|y|e|luego|ve)(?= )", re.IGNORECASE)
_ARROW = re.compile(r"-+>|=+>|→|⇒|➔|➜")

# Behind it.
_GOES_ON = re.compile(
    r"\W*$|\s*[^\w\s]|\s+[\d#\[A-ZÀ-Þ]|\s+\w+(?:ly|ment|mente)(?!\w)|[\u2e80-\uffff]"
    r"|\s+(?:by|in|on|at|as|for|from|with|without|after|since|until|to|of|and|but|or|because|due|per|via|pending|when|if"
    r"|once|though|durch|am|im|als|für|von|vom|mit|nach|seit|bis|und|aber|weil|zum|auf|par|le|la|en|au|du|depuis|pour"
    r"|avec|après|et|mais|por|el|desde|con|para|pero|y|pelo|pela|em|com|da|dal|il|door|op|met|ile|на)(?!\w)"
)
_ONLY_FOR = re.compile(
    r"\s+(?:for|in parts?|partly|partially|regarding|concerning|with (?:respect|regard) to|as far as|where|für"
    r"|teilweise|pour|en partie|para|parcialmente)(?!\w)",
    re.IGNORECASE,
)
"""Behind `superseded` when only a part of the record is."""
_BY = re.compile(
    rf"\W*(?:(?:on|am|le|el|em)\s+{_DAY}\W*)?"
    r"(?:by|with|in favou?r of|durch|von|par|por|pel[oa]|da|dal|dalla|door|на)"
    r"(?![^\W_])[\s:*_]*(?P<name>.+)",
    re.IGNORECASE,
)
_BEFORE_THE_WORD = re.compile(
    r"(?:(?<!\w)durch\s+(?P<durch>[^,;]{1,100}?)\s+(?:ersetzt|abgelöst)"
    r"|(?P<ile>\S{1,100}(?: \d{1,5})?)\s+(?:ile|tarafından)\s+(?:değiştirildi|geçersiz)"
    r"|被\s*(?P<zh>[^\s,;，。；]{1,100}(?:\s\d{1,5})?)\s*(?:取代|替代)"
    r"|(?P<ja>[^\s、。]{1,100}(?: \d{1,5})?)\s*(?:に|により|によって)(?:置き換え|置換|代替))",
    re.IGNORECASE,
)
"""Languages that name the successor first."""
_WHEN = re.compile(r"\s+(?:on|am|le|el|em|since|seit)\s+[\d.\-/]+.*$|\s*[(,]\s*[\d.\-/]{8,}.*$")
_RECORD = re.compile(
    r"(?<!\w)(?:adr|rfc|pep|kep|decision)[\s_#-]*\d{1,6}(?!\w)|(?<!\w)\d{4}-[a-z][\w-]+|#\d+", re.IGNORECASE
)

# Marks.
_LINK = re.compile(
    r"\[\[([^\[\]|]*)(?:\\?\|([^\[\]]*))?\]\]|\[([^\[\]]{1,300})\](?:\([^()\s]*(?:\s\"[^\"]*\")?\)|\[[^\[\]]{0,100}\])"
)
_GLUE = "\ue000"
"""Stands before a link and for its blanks: a link is one word for all that cuts a line."""
_SHORTCODE = re.compile(r":[a-z][a-z0-9_+-]{2,40}:")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_OPEN_BOX = re.compile(r"\[ ?\]|[☐⬜]")
_TICKED = re.compile(r"(?:\[[xX]\]|[☑✅✔☒])\s*([^\[☐⬜☑✅✔☒]+)")
_BETWEEN_CHOICES = re.compile(
    r"[\s,/|…*_`'\"]*(?:(?:or|oder|ou|o|and|und|y|e|et)(?!\w)[\s,*_`'\"]*)?(?:by [^,/|]*[,/|]\s*)?"
)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One status that a record names."""

    status: str
    """A key of `DECISION_STATUSES`."""
    successor: str = ""
    day: str = ""
    """ISO day that stands beside it."""


def latest(statements: Sequence[Statement]) -> Statement | None:
    """The statement that holds: the latest by its day, else one that names a successor, else the last.

    Without days no draft follows on something else: it tells of the past.
    """
    if len(statements) > 1 and all(one.day for one in statements):
        return max(statements[::-1], key=lambda one: one.day)
    settled = [one for one in statements if one.status != "proposed"]
    replaced = [one for one in settled if one.successor]
    return next((group[-1] for group in (replaced, settled, statements) if group), None)


def statements_of_value(text: str, *, lifecycle: bool = True) -> list[Statement]:
    """What a cell, a value of front matter or the rest of a line `Status: ...` says.

    Args:
        text: one line.
        lifecycle: whether the words of `LIFECYCLE` count.
    """
    return [*_statements(text, _ANY_WORD if lifecycle else _WORD, value=True)]


def statements_of_section(lines: Sequence[str]) -> list[Statement]:
    """What the lines below a heading `Status` say: one for a sentence, several for a history."""
    statements: list[Statement] = []
    for entry in _entries(lines):
        opens = not statements or parse_day(entry)
        statements += _statements(entry, _ANY_WORD if opens else None)
    return statements


def banner(line: str) -> str:
    """The record that a line names which says nothing else: `> Superseded by ADR-7`; empty if it names no record."""
    shown = _shown(line[:MAX_LINE])
    if not (_GLUE in shown or _RECORD.search(shown)):
        return ""
    return next((one.successor for one in _statements(line, None) if one.status == "superseded"), "")


def offers_choices(line: str) -> bool:
    """True for a form that nobody has filled in: `[Draft/Final/...]`, `proposed | accepted | rejected`."""
    text = _LINK.sub(_words_of_link, line[:MAX_LINE])
    matches = list(_ANY_WORD.finditer(text))
    run: list[str | None] = []
    for at, match in enumerate(matches):
        gap = text[matches[at - 1].end() : match.start()] if at else "-"
        run = [*run, match.lastgroup] if _BETWEEN_CHOICES.fullmatch(gap) else [match.lastgroup]
        kinds, listed = len(set(run)), "|" in gap or ("/" in gap and run[0] == "proposed")
        if kinds >= FEWEST_CHOICES or (kinds > 1 and listed):
            return not _chosen(line)
    return False


def _chosen(line: str) -> str:
    """The one of several choices that is ticked or bold."""
    if _OPEN_BOX.search(line):
        return " ".join(_TICKED.findall(line)[-1:])
    pieces = re.split("[|/]", line)
    marked = [piece for piece in pieces if "**" in piece or "__" in piece or "✅" in piece]
    return marked[0] if len(pieces) > 1 == len(marked) else ""


def _entries(lines: Sequence[str]) -> Iterator[str]:
    """Lines as they were before they were wrapped; those with an empty box are left out."""
    entry = ""
    for line in [*lines, ""]:
        text = line.strip().lstrip(">").strip()
        ended = entry.endswith((".", "!", ")", "\\", ",")) or len(entry.split()) <= SHORT_LINE
        begins = not text or text[0] == "|" or _ITEM.match(line) or (ended and _lead(text, 0, _ANY_WORD))
        if begins and entry:
            yield entry
            entry = ""
        text = _ITEM.sub("", text).removeprefix("[x]").removeprefix("[X]")
        if not text.startswith("[ ]") and text.strip("|-: "):
            entry = f"{entry} {text}".strip()


def _statements(text: str, words: re.Pattern[str] | None, *, value: bool = False) -> Iterator[Statement]:
    """What one entry says. Its first words may be any of `words`, all others must lead and be no adjectives."""
    text = text[:MAX_LINE]
    if offers_choices(text):
        return
    if text.startswith("|"):
        for cell in text.strip("|").split("|"):
            day = parse_day(text)
            yield from (
                Statement(status=s.status, successor=s.successor, day=day) for s in _statements(cell, words)
            )
        return
    line = _shown(_chosen(text) or _ARROW.split(text)[-1])
    if words and (successor := _BEFORE_THE_WORD.search(_sentence(line))):
        yield Statement(status="superseded", successor=successor_name(next(filter(None, successor.groups()))))
        return
    leads = [_lead(line, 0, words, value=value) or (words and _predicate(line, words))]
    leads += [_lead(line, at, sentence=stop) for at, stop in _boundaries(line)]
    told: list[_Lead] = []
    for lead in filter(None, leads):
        if not told or _follows(told[-1], lead):
            told.append(lead)
    for place, lead in enumerate(told):
        end = told[place + 1].start if place + 1 < len(told) else len(line)
        if lead.partly and lead.status in PARTLY and (place or not words):
            continue  # the whole has a status of its own
        if statement := _statement(lead, line[:end]):
            yield replace(statement, day=parse_day(line[lead.start if place else 0 : end]))


def _follows(before: _Lead, lead: _Lead) -> bool:
    """True if a second status in one entry can be news: `Accepted (rejected: Kafka)` stays accepted."""
    return before.status == "proposed" or lead.status in ("superseded", "deprecated")


@dataclass(frozen=True, kw_only=True)
class _Lead:
    """A status word at the start of a value, a sentence or a clause."""

    start: int
    end: int
    status: str
    negated: bool
    partly: bool


def _boundaries(line: str) -> Iterator[tuple[int, bool]]:
    """Where the second and further sentences and clauses begin, and whether it is a sentence."""
    stops = {match.end() for match in _STOP.finditer(line)}
    clauses = {match.end() for match in _CLAUSE.finditer(line)}
    yield from ((at, at in stops) for at in sorted(stops | clauses))


def _lead(
    line: str, start: int, words: re.Pattern[str] | None = None, *, value: bool = False, sentence: bool = True
) -> _Lead | None:
    """The status word that leads at `start`, behind marks, days and words such as `formally`."""
    at, negated, partly = start, False, False
    while True:
        at = _MARKS.match(line, at).end()  # type: ignore[union-attr] # matches nothing, too
        if match := (words or _WORD).match(line, at):
            break
        filler = _FILLER.match(line, at)
        if filler is None or (filler["auxiliary"] and not sentence):
            return None
        at, negated, partly = (
            filler.end(),
            negated or bool(filler["negated"]),
            partly or bool(filler["partly"]),
        )
    short = words and (value or len(_sentence(line[start:]).split()) <= SHORT_STATUS)
    if line[match.end() :].startswith("?") or not (short or _GOES_ON.match(line, match.end())):
        return None
    partly = partly or bool(_ONLY_FOR.match(line, match.end()))
    return _Lead(start=start, end=match.end(), status=str(match.lastgroup), negated=negated, partly=partly)


def _predicate(line: str, words: re.Pattern[str]) -> _Lead | None:
    """The status that the first sentence tells of the record without leading: `The board has accepted this`."""
    opening = _sentence(line)
    for match in _SAID_OF_IT.finditer(opening):
        if lead := _lead(opening, match.end(), words):
            return lead
    return None


def _statement(lead: _Lead, line: str) -> Statement | None:
    """What a lead says with all that follows it in `line`."""
    by = _BY.match(_sentence(line[lead.end :]))
    if lead.negated or (by and letters(by["name"]) in NOTHING):
        return None
    status = lead.status
    if lead.partly and status in PARTLY:
        return Statement(status=PARTLY[status])
    successor = _successor(status, _sentence(line[lead.end :]))
    return Statement(status="superseded" if successor else status, successor=successor)


def _successor(status: str, rest: str) -> str:
    """What took its place by the words behind `superseded`: `by ADR-7`, `(see [7](7.md))`, `: 0007-use-valkey`."""
    by, record = _BY.match(rest), _RECORD.search(rest)
    link = next((word for word in rest.split() if _GLUE in word), "")
    if status == "deprecated" and by and (record or link):
        return successor_name(by["name"])
    if status != "superseded":
        return ""
    return successor_name(by["name"]) if by else successor_name(link) or (record[0] if record else "")


def successor_name(text: str) -> str:
    """The name of a successor without marks, and without the day and the reason that follow it."""
    text = _WHEN.sub("", _shown(text))
    if text.startswith(_GLUE):
        text = text.split(" ", 1)[0]
    return text.replace(_GLUE, " ").strip(" .,;:()|*_[]'\"")


def _sentence(text: str) -> str:
    return _STOP.split(text, maxsplit=1)[0]


def _shown(text: str) -> str:
    return plain_text(_SHORTCODE.sub("", _LINK.sub(_words_of_link, text)))


def _words_of_link(link: re.Match[str]) -> str:
    words = link[2] or link[1] or link[3]
    return _GLUE + words.strip().replace(" ", _GLUE)
