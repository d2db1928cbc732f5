"""What was measured of the nodes, and what follows from it."""
