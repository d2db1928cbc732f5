"""`inventory.yaml` and the files of other tools: read, written, and every problem reported with its line."""
