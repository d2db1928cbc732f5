"""Shared by the containers' side (`trainer`) and the controller's (`orchestrator`). Standard library only."""
