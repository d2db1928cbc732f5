"""Probes: questions to a machine, each asked in one round trip, and the parsers of its answers."""
