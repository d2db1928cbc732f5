"""Functions of `orch_hooks` for the user's own scripts, inside a run."""
