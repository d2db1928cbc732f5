"""Requests of runs, and the check of a workload's words."""
