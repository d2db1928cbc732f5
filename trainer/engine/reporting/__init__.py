"""What a run tells: events for the orchestrator, lines for people, figures over time, profiles."""
