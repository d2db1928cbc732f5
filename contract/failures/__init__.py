"""One classification of what went wrong, used by the container's agent, the controller and the screen."""
