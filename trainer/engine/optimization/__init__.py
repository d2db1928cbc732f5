"""Optimizers of the weights, and the schedule of their rates."""
