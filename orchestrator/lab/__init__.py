"""A LAN in a box: N simulated machines on this computer."""
