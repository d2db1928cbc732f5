"""On what a rank computes: device, threads, precision, compiler; and that it does so."""
