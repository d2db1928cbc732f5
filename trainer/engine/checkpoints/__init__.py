"""Checkpoints: the state that a run saves, and from where it resumes."""
