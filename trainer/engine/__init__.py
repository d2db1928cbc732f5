"""Training of any workload: the loop and what it depends on."""
