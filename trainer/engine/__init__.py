"""How any workload is trained: the loop and what it stands on."""
