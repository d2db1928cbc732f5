"""Makers of each finding: one module for each area of checks.

A module names its findings in `MAKERS`, by id a function that gives the findings of some fleet, that one among them;
and in `healthy`, what its checks find on a fleet in health, which is nothing. `test_findings.py` collects them all.
"""
