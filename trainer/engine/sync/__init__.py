"""Sync methods, from plain DDP to an exchange every hundred steps: one module for each."""
