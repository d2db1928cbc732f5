"""Turn a handful of unequal machines on a LAN into one PyTorch training run."""
