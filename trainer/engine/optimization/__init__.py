"""What moves the weights, and how far."""
