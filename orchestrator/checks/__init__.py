"""Checks: facts in, findings out, one small pure function per fault."""
