"""Data types: inventory, request, facts, plan, run, finding, and the one error tree. Pure data."""
