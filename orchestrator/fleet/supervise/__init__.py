"""A run seen through: followed, its faults answered with the next attempt, waited for until it ends."""
