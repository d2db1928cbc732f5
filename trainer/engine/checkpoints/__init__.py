"""What a run keeps of itself, and from where it goes on."""
