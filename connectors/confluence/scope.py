"""Which contents a source is about, as CQL and as a look at one page."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.confluence.item import Item
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.search import numbers, quoted


class Scope:
    """The configured spaces, types, labels and trees."""

    def __init__(self, options: ConfluenceOptions) -> None:
        self._options = options
        self._spaces = frozenset(key.casefold() for key in options.space_keys)
        self._include = frozenset(label.casefold() for label in options.labels_include)
        self._exclude = frozenset(label.casefold() for label in options.labels_exclude)
        self._roots = frozenset(options.ancestors)

    def clause(self, types: Sequence[str]) -> str:
        """Everything of these types in the spaces; what does not qualify is told apart by `holds`."""
        spaces = f" and space in ({quoted(self._options.space_keys)})" if self._spaces else ""
        return f"type in ({', '.join(types)}){spaces}"

    def narrow_clause(self) -> str:
        """Pages and blog posts only, and no more of them than need be: for walks over all of them."""
        options = self._options
        found = self.clause(options.page_types)
        if options.labels_include:
            found += f" and label in ({quoted(sorted(self._include))})"
        if options.ancestors:
            roots = numbers(options.ancestors)
            found += f" and (ancestor in ({roots}) or id in ({roots}))"
        return found

    def holds(self, item: Item) -> bool:
        """Whether it is one of ours; restrictions are looked at elsewhere."""
        labels = {label.casefold() for label in item.labels}
        tree = {item.id, *(ancestor for ancestor, _ in item.ancestors)}
        return (
            item.kind in self._options.page_types
            and item.status == "current"
            and (not self._spaces or item.space_key.casefold() in self._spaces)
            and (not self._include or bool(labels & self._include))
            and not labels & self._exclude
            and (not self._roots or bool(tree & self._roots))
        )
