"""Whether a sentence of a model says what its citations say: by numbers, names, turns of meaning, and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.enrichment.text import WORD, covered, flat, split, stems

KNOWN = 0.75
"""Of the sentence's words: so many must stand in what it cites."""
MOST_NEW = 3
"""Words that stand in nothing it cites, however long it is."""
KEPT = 0.67
"""Of the draft's words: so many must come back."""
LONGER = 1.5
"""A sentence may be so much longer than its draft, ..."""
SHORT = 200
"""... or as long as this."""

TURNS: Mapping[str, str] = {
    "negation": "not no never none nothing nobody without cannot neither nor nicht kein keine keinen keinem keiner"
    " keines nie niemals ohne weder ne pas jamais sans aucun aucune",
    "restriction": "only solely nur lediglich ausschließlich seulement uniquement",
    "exception": "unless except despite außer trotz sauf malgré",
    "condition": "if provided falls sofern si",
    "before": "before until till prior vor bevor bis avant jusqu",
    "after": "after since nach nachdem seit après depuis",
    "more": "more most above over mehr über plus",
    "less": "less fewer least below under weniger unter moins",
    "duty": "must shall required muss müssen soll sollen doit doivent",
    "instead": "instead rather statt stattdessen anstatt",
}
"""A turn of meaning -> the words that make it. A sentence has the same turns as its draft, or says something else."""

_SPELLED = (
    "zero two three four five six seven eight nine ten eleven twelve twenty thirty fifty hundred thousand million half"
    " twice double triple once null zwei drei vier fünf sechs sieben acht neun zehn elf zwölf hundert tausend deux"
    " trois quatre cinq sept huit neuf dix cent mille"
)
_NUMBER_WORDS = frozenset(_SPELLED.split())
_TURNING = {word: turn for turn, words in TURNS.items() for word in words.split()}
_TOKEN = re.compile(r"[^\s“”„«»\"'‘’()]+")
_QUOTED = re.compile(r"[“„«\"]([^“”„«»\"]*)[”“»\"]")
_PLAIN = frozenset(" .,;:!?'\"“”„‘’«»()-–—…%€$&/+")
"""Signs that any sentence may have; every other one must stand in the source."""
_CODE = re.compile(r"\d|_|[a-zß-ÿ][A-Z]|^[A-ZÄÖÜ]{2,}|\w[./:\\@#]+\w")

_TO_A_MODEL = re.compile(
    r"\b(?:ignor|disregard|forget|overrid|missachte|vergiss|vergesse|oublie)\w*\b.{0,40}"
    r"\b(?:above|before|earlier|instruct|previous|prior|prompt|rule|anweisung|vorherig|consigne|précédent)"
    r"|\b(?:system|developer) (?:prompt|message)|\byou are (?:now|an? (?:ai|assistant|language model))\b|\bjailbreak",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A sentence of an answer as it was extracted."""

    key: str
    """Its place in the answer."""
    text: str
    title: str
    """Of its document."""
    cited: Mapping[int, str]
    """Number of a citation -> the quotation it rests on."""


@dataclass(frozen=True, kw_only=True)
class Worded:
    """What a model makes of a draft; nothing in it is believed before it was checked."""

    key: str
    text: str
    citations: tuple[int, ...]
    """Numbers of the citations that it says it rests on."""


def speaks_to_a_model(text: str) -> bool:
    """True for a sentence that tells a model what to do; said in other words, its claim could pass for a fact."""
    return _TO_A_MODEL.search(text) is not None


def objection(worded: Worded, draft: Draft) -> str:
    """Why a sentence cannot stand for its draft, in a word or two for the log; empty if it can."""
    if not worded.citations or not set(worded.citations) <= draft.cited.keys():
        return "citations"
    text = flat(worded.text)
    source = " ".join((draft.text, draft.title, *(draft.cited[n] for n in worded.citations)))
    return next((name for name, fails in _CHECKS.items() if fails(text, draft.text, source)), "")


def _is_too_long(text: str, draft: str, _source: str) -> bool:
    if not text or len(text) > max(SHORT, LONGER * len(draft)):
        return True
    return len(list(split(text))) > len(list(split(draft)))


def _has_new_signs(text: str, _draft: str, source: str) -> bool:
    return any(not (c.isalnum() or c in _PLAIN or c in source) for c in text)


def _quotes_what_is_not_there(text: str, _draft: str, source: str) -> bool:
    whole = flat(source)
    return any(flat(quoted).strip(" ….,") not in whole for quoted in _QUOTED.findall(text))


def _differs_in_marks(text: str, draft: str, source: str) -> bool:
    """Numbers, ids, code names: none is new, and none is lost."""
    return not marks(text) <= marks(source) or not marks(draft) <= marks(text)


def _turns(text: str, draft: str, _source: str) -> bool:
    return turns(text) != turns(draft)


def _names_somebody_new(text: str, _draft: str, source: str) -> bool:
    """A capital inside of a sentence is a name, or a noun; a new one is an invention."""
    known = stems(source)
    inside = [m.group() for m in WORD.finditer(text) if m.start() and m.group()[0].isupper()]
    return any(not stems(word) <= known for word in inside)


def _says_something_else(text: str, draft: str, source: str) -> bool:
    """A word of one's own stands for one of the draft's: more than one beyond that is something added."""
    words, known, own = stems(text), stems(source), stems(draft)
    if not words or len(words - known) > min(MOST_NEW, len(own - words) + 1):
        return True
    return covered(words, known) < KNOWN or covered(own, words) < KEPT


_CHECKS: Mapping[str, Callable[[str, str, str], bool]] = {
    "length": _is_too_long,
    "signs": _has_new_signs,
    "quotation": _quotes_what_is_not_there,
    "numbers and names": _differs_in_marks,
    "turn of meaning": _turns,
    "new name": _names_somebody_new,
    "words": _says_something_else,
}
"""What can be wrong -> the check (sentence, draft, all that it cites), in order; the first that fails is told."""


def marks(text: str) -> frozenset[str]:
    """Numbers, in digits or spelled, and what looks like an id, a path, an address or a name in code."""
    tokens = [token.strip(".,;:!?…") for token in _TOKEN.findall(text)]
    spelled = {word for word in _words(text) if word in _NUMBER_WORDS}
    return frozenset(token for token in tokens if _CODE.search(token)) | spelled


def turns(text: str) -> frozenset[str]:
    """The turns of meaning of a text."""
    found = {_TURNING[word] for word in _words(text) if word in _TURNING}
    return frozenset(found | ({"negation"} if re.search(r"n['’]t\b", text) else set()))


def _words(text: str) -> Sequence[str]:
    return [match.group().lower() for match in WORD.finditer(text)]
