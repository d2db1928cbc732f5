"""The truth about a run, as data: pure."""
