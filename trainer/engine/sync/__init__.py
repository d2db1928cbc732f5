"""How ranks come to one gradient, or one set of weights, over a network that may be slow."""
