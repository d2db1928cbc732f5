"""Training data: texts, tokens and the order in which they come."""
