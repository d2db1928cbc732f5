"""How the ranks keep one model in common, from plain DDP to a word every hundred steps: one module for each way."""
