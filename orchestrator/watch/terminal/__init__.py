"""`orch monitor`: the model that events feed, and the screen that shows it."""
