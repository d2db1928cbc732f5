"""Data to people: tables, prefixed logs, progress, JSON."""
