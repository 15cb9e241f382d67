"""Code that connectors share to build documents: headings, decisions, times, JSON, rights, redaction."""
