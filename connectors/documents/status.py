"""Parser of a decision's status as people write it: a value, a sentence, or a history of several lines.

A status is the first word of a value, of a sentence or of a clause. A word elsewhere in a sentence is
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
"""Most characters of a line that are searched; a longer one is cut."""
SHORT_LINE = 6
"""Most words of a line that is complete; a longer one may be wrapped."""
SHORT_STATUS = 3
"""Most words of a sentence that is a status whatever follows its first word: `Draft proposal`."""
FEWEST_CHOICES = 3
"""Fewest statuses side by side that are a list to choose from."""

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
"""Status -> ambiguous words that are a status only as a value, or at the start of the section `Status`."""


_FIRST_IDEOGRAPH = "\u2e80"
"""First character of scripts without blanks between words."""


PARTLY_WORD = re.compile(
    r"(?<!\w)(?:part(?:ly|ially)|in part|teilweise|partiellement|parcialmente|parzialmente)(?!\w)",
    re.IGNORECASE,
)
PARTLY = {"superseded": "accepted", "deprecated": "accepted", "implemented": "implementing"}
"""Status of a part of a record -> status of the record."""


def _either(words: Mapping[str, Sequence[str]]) -> re.Pattern[str]:
    """A pattern with a group for each status; longer words are tried first."""
    groups = []
    for status, phrases in words.items():
        ordered = sorted(set(phrases), key=len, reverse=True)
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

# Words before a status word.
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
_PREDICATE_VERB = re.compile(
    r"(?<!\w)(?:is|was|has|been|have|now|are|were|ist|wurde|est|été|fue|sido|foi|è)\s+", re.IGNORECASE
)
_STOP = re.compile(r"(?<! \d)(?<! \d\d)(?<! \d{3})(?<! \d{4})[.!?;]+(?= |$)|[。；]| [–—-]+ ")
_CLAUSE = re.compile(r"[,，、(（]|(?<!\w)(?:and|then|und|dann|et|puis|y|e|luego|ve)(?= )", re.IGNORECASE)
_ARROW = re.compile(r"-+>|=+>|→|⇒|➔|➜")

# Words after a status word.
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
"""Words after `superseded` that limit it to a part of the record."""
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
"""Phrases in languages that name the successor before the status word."""
_WHEN = re.compile(r"\s+(?:on|am|le|el|em|since|seit)\s+[\d.\-/]+.*$|\s*[(,]\s*[\d.\-/]{8,}.*$")
_RECORD = re.compile(
    r"(?<!\w)(?:adr|rfc|pep|kep|decision)[\s_#-]*\d{1,6}(?!\w)|(?<!\w)\d{4}-[a-z][\w-]+|#\d+", re.IGNORECASE
)

# Marks.
_LINK = re.compile(
    r"\[\[([^\[\]|]*)(?:\\?\|([^\[\]]*))?\]\]|\[([^\[\]]{1,300})\](?:\([^()\s]*(?:\s\"[^\"]*\")?\)|\[[^\[\]]{0,100}\])"
)
_GLUE = "\ue000"
"""Character before a link and in place of its blanks, so that a link is one word when a line is split."""
_SHORTCODE = re.compile(r":[a-z][a-z0-9_+-]{2,40}:")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_OPEN_BOX = re.compile(r"\[ ?\]|[☐⬜]")
_TICKED = re.compile(r"(?:\[[xX]\]|[☑✅✔☒])\s*([^\[☐⬜☑✅✔☒]+)")
_BETWEEN_CHOICES = re.compile(
    r"[\s,/|…*_`'\"]*(?:(?:or|oder|ou|o|and|und|y|e|et)(?!\w)[\s,*_`'\"]*)?(?:by [^,/|]*[,/|]\s*)?"
)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A status stated in a record."""

    status: str
    """Key of `DECISION_STATUSES`."""
    successor: str = ""
    day: str = ""
    """ISO day stated with it; empty if there is none."""


def latest(statements: Sequence[Statement]) -> Statement | None:
    """The current statement: the latest by its day, else the last with a successor, else the last.

    Without days, `proposed` counts only if there is no other: it is the past then.
    """
    if len(statements) > 1 and all(statement.day for statement in statements):
        return max(statements[::-1], key=lambda statement: statement.day)
    settled = [statement for statement in statements if statement.status != "proposed"]
    replaced = [statement for statement in settled if statement.successor]
    return next((group[-1] for group in (replaced, settled, statements) if group), None)


def statements_of_value(text: str, *, lifecycle: bool = True) -> list[Statement]:
    """Statements of a single value: a cell, a field of front matter, or the text after `Status:`.

    Args:
        text: one line.
        lifecycle: whether the words of `LIFECYCLE` count.
    """
    return [*_statements(text, _ANY_WORD if lifecycle else _WORD, value=True)]


def statements_of_section(lines: Sequence[str]) -> list[Statement]:
    """Statements of the lines below a heading `Status`: one of a sentence, several of a history."""
    statements: list[Statement] = []
    for entry in _entries(lines):
        opens = not statements or parse_day(entry)
        statements += _statements(entry, _ANY_WORD if opens else None)
    return statements


def banner(line: str) -> str:
    """Successor named by a line such as `> Superseded by ADR-7`; empty if the line is no such banner."""
    plain_line = _plain(line[:MAX_LINE])
    if not (_GLUE in plain_line or _RECORD.search(plain_line)):
        return ""
    return next(
        (statement.successor for statement in _statements(line, None) if statement.status == "superseded"), ""
    )


def offers_choices(line: str) -> bool:
    """True for choices of which none is marked: `[Draft/Final/...]`, `proposed | accepted | rejected`."""
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
    """The choice that is ticked or bold; empty if none is, or several are."""
    if _OPEN_BOX.search(line):
        return " ".join(_TICKED.findall(line)[-1:])
    pieces = re.split("[|/]", line)
    marked = [piece for piece in pieces if "**" in piece or "__" in piece or "✅" in piece]
    return marked[0] if len(pieces) > 1 == len(marked) else ""


def _entries(lines: Sequence[str]) -> Iterator[str]:
    """Lines with wrapped ones joined; those with an empty check box are left out."""
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
    """Statements of one entry. Its first status may be any of `words`; further ones must begin a sentence or clause."""
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
    line = _plain(_chosen(text) or _ARROW.split(text)[-1])
    if words and (successor := _BEFORE_THE_WORD.search(_sentence(line))):
        yield Statement(status="superseded", successor=successor_name(next(filter(None, successor.groups()))))
        return
    leads = [_lead(line, 0, words, value=value) or (words and _predicate(line, words))]
    leads += [_lead(line, at, sentence=stop) for at, stop in _boundaries(line)]
    relevant: list[_Lead] = []
    for lead in filter(None, leads):
        if not relevant or _follows(relevant[-1], lead):
            relevant.append(lead)
    for place, lead in enumerate(relevant):
        end = relevant[place + 1].start if place + 1 < len(relevant) else len(line)
        if lead.partly and lead.status in PARTLY and (place or not words):
            continue  # the record has a status of its own
        if statement := _statement(lead, line[:end]):
            yield replace(statement, day=parse_day(line[lead.start if place else 0 : end]))


def _follows(before: _Lead, lead: _Lead) -> bool:
    """True if a second status may replace the first: `Accepted (rejected: Kafka)` stays accepted."""
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
    """Start of each further sentence or clause, and whether it is a sentence."""
    stops = {match.end() for match in _STOP.finditer(line)}
    clauses = {match.end() for match in _CLAUSE.finditer(line)}
    yield from ((at, at in stops) for at in sorted(stops | clauses))


def _lead(
    line: str, start: int, words: re.Pattern[str] | None = None, *, value: bool = False, sentence: bool = True
) -> _Lead | None:
    """The status word at `start`, after marks, days and words such as `formally`; None if there is none."""
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
    """The status after a verb in the first sentence: `The board has accepted this`."""
    opening = _sentence(line)
    for match in _PREDICATE_VERB.finditer(opening):
        if lead := _lead(opening, match.end(), words):
            return lead
    return None


def _statement(lead: _Lead, line: str) -> Statement | None:
    """Statement of a status word with the text after it in `line`; None if it is negated."""
    successor_phrase = _BY.match(_sentence(line[lead.end :]))
    if lead.negated or (successor_phrase and letters(successor_phrase["name"]) in NOTHING):
        return None
    status = lead.status
    if lead.partly and status in PARTLY:
        return Statement(status=PARTLY[status])
    successor = _successor(status, _sentence(line[lead.end :]))
    return Statement(status="superseded" if successor else status, successor=successor)


def _successor(status: str, text: str) -> str:
    """Successor in the words after `superseded`: `by ADR-7`, `(see [7](7.md))`, `: 0007-use-valkey`; else empty."""
    successor_phrase, record = _BY.match(text), _RECORD.search(text)
    link = next((word for word in text.split() if _GLUE in word), "")
    if status == "deprecated" and successor_phrase and (record or link):
        return successor_name(successor_phrase["name"])
    if status != "superseded":
        return ""
    return (
        successor_name(successor_phrase["name"])
        if successor_phrase
        else successor_name(link) or (record[0] if record else "")
    )


def successor_name(text: str) -> str:
    """Name of a successor, without marks and the day and reason after it."""
    text = _WHEN.sub("", _plain(text))
    if text.startswith(_GLUE):
        text = text.split(" ", 1)[0]
    return text.replace(_GLUE, " ").strip(" .,;:()|*_[]'\"")


def _sentence(text: str) -> str:
    return _STOP.split(text, maxsplit=1)[0]


def _plain(text: str) -> str:
    return plain_text(_SHORTCODE.sub("", _LINK.sub(_words_of_link, text)))


def _words_of_link(link: re.Match[str]) -> str:
    words = link[2] or link[1] or link[3]
    return _GLUE + words.strip().replace(" ", _GLUE)
