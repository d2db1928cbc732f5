"""What is trained: plain torch modules."""
