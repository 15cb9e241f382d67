"""What connectors share to make documents: front matter, headings, decisions, times, JSON, redaction."""
