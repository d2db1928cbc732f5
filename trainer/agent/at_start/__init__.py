"""A folder on the ranks' PYTHONPATH: Python imports `sitecustomize` from there before it runs anything."""
