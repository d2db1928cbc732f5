"""`inventory.yaml` and the files of other tools: read, written, and every problem reported with its line."""

HINT = "orch init ADDRESS...   # write one for your machines; or begin with simulated ones: orch lab up"
"""Next step where there is no inventory."""
