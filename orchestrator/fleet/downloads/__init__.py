"""Downloads for a run: fetched by one node, copied to the others."""
