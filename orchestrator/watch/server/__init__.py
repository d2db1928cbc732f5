"""The local page of `orch dashboard`: where it listens, who may ask, what it answers. Needs the extra `dashboard`."""
