"""Whether the nodes are fit for a run, and what makes them so."""
