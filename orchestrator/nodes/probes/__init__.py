"""What a machine is asked, each in one round trip, and what its answers mean."""
