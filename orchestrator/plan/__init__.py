"""Planning: rank assignment, master, backend, interfaces, torchrun and container specs. Pure."""
