"""Models: plain torch modules."""
