"""Predict the time of a training step for each sync method and set of nodes, from a short measurement. Pure."""
