"""Small programs beside the training: the connectivity check and the resource monitor."""
