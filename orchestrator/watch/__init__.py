"""Views of runs and machines: the same data and words on every screen."""
