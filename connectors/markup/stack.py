"""The elements that are open, and which of them a tag closes though nobody wrote so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

Close = Callable[[], None]

BLOCKS = frozenset(
    "address article aside blockquote body center dd details dialog dir div dl dt fieldset "  # noqa: SIM905 (a list of words)
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr html legend li main menu nav ol "
    "option p pre section summary table tbody td tfoot th thead tr ul ac:layout "
    "ac:layout-section ac:layout-cell".split()
)
VOID = frozenset(
    "area base br col embed frame hr img input link meta param source track wbr".split()  # noqa: SIM905 (a list of words)
)
_CELLS = frozenset({"td", "th"})
_TABLE_PARTS = frozenset(
    "td th tr tbody thead tfoot caption colgroup".split()  # noqa: SIM905 (a list of words)
)
_SCOPES = frozenset({"table", "td", "th", "caption"})
_ITEM_SCOPES = frozenset({"ul", "ol", "menu", "dir"})
_CLOSES_PARAGRAPH = BLOCKS - {"body", "html", "option", "dd", "dt", "li", "td", "th", "tr"} | _ITEM_SCOPES

# A start tag ends the open elements of these names, looking up to those.
_IMPLIED: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "li": (frozenset({"li", "p"}), _ITEM_SCOPES),
    "dt": (frozenset({"dt", "dd"}), frozenset({"dl"})),
    "dd": (frozenset({"dt", "dd"}), frozenset({"dl"})),
    "option": (frozenset({"option"}), frozenset({"select"})),
    "a": (frozenset({"a"}), frozenset()),
    "td": (_CELLS | {"caption", "colgroup"}, frozenset({"table", "tr"})),
    "th": (_CELLS | {"caption", "colgroup"}, frozenset({"table", "tr"})),
    "tr": (_CELLS | {"tr", "caption", "colgroup"}, frozenset({"table"})),
    **dict.fromkeys(("tbody", "thead", "tfoot"), (_TABLE_PARTS, frozenset({"table"}))),
    **dict.fromkeys(_CLOSES_PARAGRAPH, (frozenset({"p"}), frozenset())),
}
# An end tag looks for its start tag no further up than these.
_ENDS_WITHIN: dict[str, frozenset[str]] = {
    "li": _ITEM_SCOPES,
    "dt": frozenset({"dl"}),
    "dd": frozenset({"dl"}),
    **dict.fromkeys(_TABLE_PARTS, frozenset({"table"})),
}


@dataclass(slots=True)
class _Open:
    name: str
    close: Close | None


class OpenElements:
    """A stack of bounded height, so that looking through it costs little whatever is nested."""

    def __init__(self, most: int) -> None:
        self.depth_capped = False
        self._most = most
        self._open: list[_Open] = []
        self._count: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        """True if the next element is too deep to be kept."""
        return len(self._open) >= self._most

    def is_open(self, name: str) -> bool:
        """True if such an element is open anywhere."""
        return self._count[name] > 0

    def push(self, name: str, close: Close | None) -> None:
        """Opens an element; `close` is called at its end."""
        self._open.append(_Open(name, close))
        self._count[name] += 1

    def leave_out(self, name: str) -> None:
        """Counts an element that is too deep, so that its end tag closes nothing else."""
        self.depth_capped = True
        self._left_out[name] += 1

    def imply_ends(self, name: str) -> None:
        """Closes what the start of `name` closes."""
        rule = _IMPLIED.get(name)
        if rule is None or self._left_out:  # what it would close may be one that was left out
            return
        names, stops = rule
        if any(self._count[each] for each in names):
            found = self._find(names, stops if name in _TABLE_PARTS else stops | _SCOPES, outermost=True)
            self._pop_to(found)

    def end(self, name: str) -> bool:
        """Closes `name` and all within; False if no such element is open here."""
        if left_out := self._left_out.pop(name, 0):
            if left_out > 1:
                self._left_out[name] = left_out - 1
            return True
        if not self._count[name]:
            return False
        stops = frozenset() if ":" in name or name == "table" else _ENDS_WITHIN.get(name, _SCOPES)
        found = self._find(frozenset({name}), stops, across_extensions=name.startswith("ac:"))
        self._pop_to(found)
        return found is not None

    def end_all(self) -> None:
        """Closes everything."""
        self._pop_to(0)

    def _find(
        self,
        names: frozenset[str],
        stops: frozenset[str],
        *,
        outermost: bool = False,
        across_extensions: bool = False,
    ) -> int | None:
        found: int | None = None
        for index in range(len(self._open) - 1, -1, -1):
            name = self._open[index].name
            if name in names:
                found = index
                if not outermost:
                    break
            elif name in stops or (not across_extensions and name.startswith("ac:")):
                break
        return found

    def _pop_to(self, index: int | None) -> None:
        if index is not None:
            self._left_out.clear()  # they stood within what ends now
        while index is not None and len(self._open) > index:
            gone = self._open.pop()
            self._count[gone.name] -= 1
            if gone.close is not None:
                gone.close()
