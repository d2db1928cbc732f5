"""Output of a run: events for the orchestrator, lines for people, figures over time, profiles."""
