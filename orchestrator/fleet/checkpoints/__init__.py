"""Checkpoints on many machines: which there are, whether they are sound, and copies of them elsewhere."""
