"""Settings and figures found by trials before the first step: sizes, workers, learning rate, speeds and links."""
