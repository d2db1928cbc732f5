"""Tools: connectivity check, resource monitor, verification and export of checkpoints."""
