"""Supervision of a run: follow it, answer failures with the next attempt, wait until it ends."""
