"""Images: built on one node, brought to the others."""
