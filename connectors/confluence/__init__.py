"""Pages of Confluence, Cloud and Server/Data Center, as documents."""

from __future__ import annotations

from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.source import ConfluenceSource

__all__ = ["ConfluenceOptions", "ConfluenceSource"]
