"""Meaning of a failed rank's last lines: one small rule for each cause, one module for each area of causes. Pure."""
