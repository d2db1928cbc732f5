"""The in-image training package: torch, never orchestrator."""
