"""A slow, unequal LAN on one machine: nodes in network namespaces, each with a link and a processor of its own rate."""
