"""On what is trained: texts, tokens and the order in which they come."""
