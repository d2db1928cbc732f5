"""The verbs, on many machines at once, callable from Python and never printing."""
