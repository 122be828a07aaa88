"""Reports: plain tables and figures become text, JSON and CSV; nothing is computed here."""
