"""One machine: the interface (ssh, local, fake), its engine, the probes. All effects are here."""
