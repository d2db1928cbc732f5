"""The record of a run on this computer."""
