"""Fitness of the nodes for a run, and what restores it."""
