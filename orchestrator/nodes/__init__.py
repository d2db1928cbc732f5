"""One machine: the seam (ssh, local, fake), its engine, the fact probes. All effects live here."""
