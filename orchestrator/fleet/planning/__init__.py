"""Saved measurements, and the check of a workload's words."""
